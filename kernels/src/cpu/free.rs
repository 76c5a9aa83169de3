//! How much memory the process may still take: that of the machine, or less in a container with a limit.

use std::path::Path;

/// Assumed where the system does not report it.
const UNKNOWN: usize = 2 << 30;
/// v1 writes its largest number of pages, and v2 "max", for no limit; larger than any machine either way.
const NO_LIMIT: usize = 1 << 60;

/// Files of a version of control groups (cgroups(7), Linux's admin-guide/cgroup-v1/memory and cgroup-v2).
struct Version {
    /// Under the mount of all hierarchies.
    mount: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// In memory.stat: pages of files, which the system drops when memory is short.
    files: [&'static str; 2],
}

const V1: Version = Version {
    mount: "memory",
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};
const V2: Version =
    Version { mount: "", limit: "memory.max", usage: "memory.current", files: ["inactive_file", "active_file"] };

pub fn bytes() -> usize {
    let read = |path| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| available(&text)).unwrap_or(UNKNOWN);
    let groups = read("/proc/self/cgroup").map(|own| in_groups(Path::new("/sys/fs/cgroup"), &own));
    groups.map_or(machine, |left| left.min(machine))
}

/// MemAvailable of /proc/meminfo.
fn available(meminfo: &str) -> Option<usize> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib << 10)
}

/// What the limits of the process's control groups leave; usize::MAX without one. `own` is /proc/self/cgroup.
fn in_groups(root: &Path, own: &str) -> usize {
    let groups = own.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        match controllers {
            "" => Some((V2, path)),
            _ if controllers.split(',').any(|name| name == "memory") => Some((V1, path)),
            _ => None,
        }
    });
    groups.map(|(version, path)| in_group(&version, &root.join(version.mount), path)).min().unwrap_or(usize::MAX)
}

/// A limit holds for all groups below. Inside a container the mount may be the process's own group, while its path is
/// that on the host: groups that do not exist here are passed over.
fn in_group(version: &Version, mount: &Path, path: &str) -> usize {
    let own = Path::new(path.trim_start_matches('/'));
    own.ancestors().filter_map(|group| left(version, &mount.join(group))).min().unwrap_or(usize::MAX)
}

fn left(version: &Version, group: &Path) -> Option<usize> {
    let read = |name| std::fs::read_to_string(group.join(name)).ok();
    let limit: usize = read(version.limit)?.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)?;
    let usage: usize = read(version.usage)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let pages = stat.lines().filter_map(|line| line.split_once(' '));
    let files: usize = pages
        .filter(|(name, _)| version.files.contains(name))
        .filter_map(|(_, bytes)| bytes.parse::<usize>().ok())
        .sum();
    Some(limit.saturating_sub(usage.saturating_sub(files)))
}

#[cfg(test)]
mod tests;
