use super::*;

#[test]
fn large_quantized_weights_stay_as_they_are_stored() {
    let fp8 = StoredForm::Fp8 { block: [128, 128] };
    let int4 = |group, scales| StoredForm::Int4 { group, scales };
    let bytes = |role, stored| CudaStorage.weight_bytes(role, stored, Precision::Bf16, 1 << 20);
    assert_eq!(bytes(WeightRole::Expert, fp8), (1 << 20) + 4 * 64);
    assert_eq!(bytes(WeightRole::Linear, int4(32, ScaleForm::F32)), (1 << 19) + (1 << 17));
    assert_eq!(bytes(WeightRole::Expert, int4(32, ScaleForm::Bf16)), (1 << 19) + (1 << 16));
    assert_eq!(bytes(WeightRole::LatentExpansion, fp8), 2 << 20);
    assert_eq!(bytes(WeightRole::Linear, StoredForm::Fp8 { block: [64, 128] }), 2 << 20);
    assert_eq!(bytes(WeightRole::Expert, StoredForm::Fp8 { block: BY_OUTPUT }), (1 << 20) + 4 * (64 + 2048));
    assert_eq!(bytes(WeightRole::Linear, int4(16, ScaleForm::Bf16)), 2 << 20);
    assert_eq!(bytes(WeightRole::Embedding, StoredForm::F16), 2 << 20);
    assert_eq!(CudaStorage.weight_bytes(WeightRole::Router, fp8, Precision::F32, 10), 40);
}
