use std::path::PathBuf;

use super::*;

const MIB: usize = 1 << 20;

/// A tree of control groups in a directory of its own, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let root = std::env::temp_dir().join(format!("rein-groups-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        Tree(root)
    }

    fn group(self, version: &Version, path: &str, limit: &str, usage: usize, files: [usize; 2]) -> Tree {
        let group = self.0.join(version.mount).join(path);
        std::fs::create_dir_all(&group).unwrap();
        let [inactive, active] = version.files;
        std::fs::write(group.join(version.limit), format!("{limit}\n")).unwrap();
        std::fs::write(group.join(version.usage), format!("{usage}\n")).unwrap();
        let stat = format!("anon 12\n{inactive} {}\n{active} {}\nslab 3\n", files[0], files[1]);
        std::fs::write(group.join("memory.stat"), stat).unwrap();
        self
    }

    fn left(&self, own: &str) -> usize {
        in_groups(&self.0, own)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn the_machine_reports_available_memory() {
    assert_eq!(available("MemTotal:  9 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n"), Some(2 * MIB));
    assert_eq!(available("MemTotal:  9 kB\n"), None);
}

#[test]
fn the_tightest_limit_on_the_way_up_holds() {
    let tree = Tree::new("v2")
        .group(&V2, "pods", &(300 * MIB).to_string(), 290 * MIB, [150 * MIB, 0])
        .group(&V2, "pods/one", &(512 * MIB).to_string(), 200 * MIB, [0, 0])
        .group(&V2, "pods/one/container", "max", 100 * MIB, [0, 0]);
    assert_eq!(tree.left("0::/pods/one/container\n"), 160 * MIB, "pods: 300 - (290 - 150)");
    assert_eq!(tree.left("0::/elsewhere\n"), usize::MAX, "a group without files");
    assert_eq!(tree.left(""), usize::MAX);
}

#[test]
fn pages_of_files_count_as_free() {
    let tree = Tree::new("files").group(&V2, "", &(512 * MIB).to_string(), 400 * MIB, [100 * MIB, 50 * MIB]);
    assert_eq!(tree.left("0::/\n"), 262 * MIB);
    let full = Tree::new("full").group(&V2, "", &(512 * MIB).to_string(), 600 * MIB, [0, 0]);
    assert_eq!(full.left("0::/\n"), 0);
}

#[test]
fn version_1_is_read_as_well() {
    let own = "9:name=systemd:/\n4:cpu,memory:/host/pod/container\n0::/\n";
    // The container sees its own group as the root of the mount, and the host's path in /proc.
    let limited = Tree::new("v1").group(&V1, "", &(256 * MIB).to_string(), 64 * MIB, [16 * MIB, 0]);
    assert_eq!(limited.left(own), 208 * MIB);
    let unlimited = Tree::new("v1-none").group(&V1, "", "9223372036854771712", 64 * MIB, [0, 0]);
    assert_eq!(unlimited.left(own), usize::MAX);
}
