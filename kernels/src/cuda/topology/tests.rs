use std::fs;

use super::adapters_beside;

#[test]
fn adapters_on_the_side_of_a_gpu_are_found() {
    let root = std::env::temp_dir().join(format!("rein-topology-{}", std::process::id()));
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("a file");
    };
    write("pci/0000:41:00.0/numa_node", "1\n");
    write("pci/0000:01:00.0/numa_node", "-1\n");
    for (name, node) in [("mlx5_0", "0"), ("mlx5_3", "1"), ("mlx5_2", "1"), ("mlx5_9", "-1")] {
        write(&format!("ib/{name}/device/numa_node"), node);
    }
    let beside = |gpus: &[&str]| {
        let gpus: Vec<String> = gpus.iter().map(|gpu| (*gpu).to_owned()).collect();
        adapters_beside(&root.join("pci"), &root.join("ib"), &gpus)
    };
    assert_eq!(beside(&["0000:41:00.0"]), ["mlx5_2", "mlx5_3"]);
    // A host of one node says -1.
    assert_eq!(beside(&["0000:01:00.0"]), ["mlx5_9"]);
    assert_eq!(adapters_beside(&root.join("pci"), &root.join("none"), &[]), [""; 0]);
    fs::remove_dir_all(&root).expect("removed");
}
