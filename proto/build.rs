//! Compiles the protos, and their descriptors for gRPC reflection.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    tonic_prost_build::configure()
        .build_transport(true)
        .bytes(".rein.internal.v1.Steer.mask")
        .bytes(".rein.internal.v1.Draw.mask")
        .file_descriptor_set_path(out.join("descriptors.bin"))
        .compile_protos(
            &["proto/inference.proto", "proto/engine.proto", "proto/ranks.proto", "proto/control.proto"],
            &["proto"],
        )?;
    Ok(())
}
