use std::fs;

use super::{NvLinkEnd, adapters_beside, domain_on_host, pci_address};

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

/// NVLink domains of GPUs, by their PCI addresses and the GPUs that their links lead to.
fn domains(links: &[(&str, &[&str])]) -> Vec<String> {
    let to = |gpus: &[&str]| -> Vec<NvLinkEnd> {
        let end = |gpu: &&str| if *gpu == "switch" { NvLinkEnd::Switch } else { NvLinkEnd::Gpu((*gpu).to_owned()) };
        gpus.iter().map(end).collect()
    };
    links.iter().map(|(at, gpus)| domain_on_host(at, &to(gpus), "host").unwrap_or_default()).collect()
}

#[test]
fn gpus_that_a_bridge_links_are_a_domain_of_two() {
    let pairs = domains(&[("a", &["b", "b"]), ("b", &["a", "a"]), ("c", &["d"]), ("d", &["c"])]);
    assert_eq!(pairs, ["host/a+b", "host/a+b", "host/c+d", "host/c+d"]);
}

#[test]
fn gpus_that_switches_link_are_one_domain() {
    assert_eq!(domains(&[("a", &["switch"; 18]), ("b", &["switch"; 18])]), ["host", "host"]);
}

#[test]
fn gpus_that_are_all_linked_directly_are_one_domain_and_those_in_a_row_are_none() {
    let all = domains(&[("a", &["b", "c"]), ("b", &["a", "c"]), ("c", &["a", "b"])]);
    assert_eq!(all, ["host/a+b+c"; 3]);
    let row = domains(&[("a", &["b"]), ("b", &["a", "c"]), ("c", &["b"])]);
    assert_eq!(row, ["host/a+b", "host/a+b+c", "host/b+c"]);
}

#[test]
fn gpus_without_links_to_gpus_have_no_domain() {
    assert_eq!(domains(&[("a", &[])]), [""]);
    assert_eq!(domain_on_host("a", &[NvLinkEnd::Other], "host"), None);
}

#[test]
fn addresses_of_nvml_are_written_as_in_sysfs() {
    let text = |address: &str| {
        let mut bytes = [0; 32];
        bytes[..address.len()].copy_from_slice(address.as_bytes());
        pci_address(&bytes)
    };
    assert_eq!(text("00000000:4B:00.0"), "0000:4b:00.0");
    assert_eq!(text("0000:4b:00.0"), "0000:4b:00.0");
    assert_eq!(text("00010000:4B:00.0"), "00010000:4b:00.0");
}
