//! With the feature `cuda`: embeds what `make cuda` made. Without it, the crate builds the same, and opening a device
//! says that the binary has no kernels.

use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    // scripts/test.sh holds it while it makes the kernels. Else this crate and those above it would be compiled twice.
    if let Some(lock) = env::var_os("REIN_CUDA_LOCK") {
        fs::File::open(lock).and_then(|lock| lock.lock_shared()).expect("the lock can be waited for");
    }
    let made = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../target/cuda");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    for file in ["rein.fatbin", "ptx_expected.txt", "deep_gemm.cubin", "flashinfer.cubin", "humming.cubin"] {
        let from = made.join(file);
        println!("cargo:rerun-if-changed={}", from.display());
        let bytes = if from.exists() { fs::read(&from).expect("the file is readable") } else { Vec::new() };
        fs::write(Path::new(&out).join(file), bytes).expect("OUT_DIR is writable");
    }
}
