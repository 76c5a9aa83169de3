//! Compiles the protos, and their descriptors for gRPC reflection.

const PROTOS: [&str; 4] =
    ["v1/inference.proto", "internal/v1/engine.proto", "internal/v1/ranks.proto", "internal/v1/control.proto"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    tonic_prost_build::configure()
        .build_transport(true)
        .codec_path("crate::codec::WholeCodec")
        .bytes(".rein.internal.v1.Start.packed_prompt")
        .bytes(".rein.internal.v1.LoraPart.down")
        .bytes(".rein.internal.v1.LoraPart.up")
        .bytes(".rein.internal.v1.Steer.mask")
        .bytes(".rein.internal.v1.Draw.mask")
        .file_descriptor_set_path(out.join("descriptors.bin"))
        .compile_protos(&PROTOS.map(|file| format!("proto/rein/{file}")), &["proto".to_owned()])?;
    Ok(())
}
