//! With the feature `cuda`: embeds what `make cuda` made. Without it, the crate builds the same, and opening a device
//! says that the binary has no kernels.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// Compiling the kernels takes some minutes, installing the compiler before it as long.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    // Else this crate and those above it would be compiled twice.
    if let Some(file) = env::var_os("REIN_CUDA_MADE") {
        wait_for(Path::new(&file));
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

/// `scripts/test.sh` makes the kernels meanwhile, and this file at their end.
#[allow(clippy::disallowed_methods)]
fn wait_for(file: &Path) {
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < LONGEST_WAIT, "no {} after an hour", file.display());
        thread::sleep(Duration::from_millis(200));
    }
}
