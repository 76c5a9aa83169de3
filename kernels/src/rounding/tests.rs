use super::*;
use crate::diff::difference;
use crate::random::Random;

fn devices() -> RoundingDevices {
    RoundingDevices { cpu: CpuDevices { threads: 1 } }
}

fn table() -> HostMatrix {
    HostMatrix { rows: 1, cols: 1, data: HostData::F32(vec![1.0]) }
}

fn is_bf16(x: &f32) -> bool {
    bf16::from_f32(*x).to_f32() == *x
}

#[test]
fn activations_have_the_type_of_the_embedding() {
    let mut random = Random::new(3);
    let backend = devices().open_beside(0).expect("cpu");
    let (x, weight) = (random.numbers(4 * 64, 1.0), random.numbers(32 * 64, 0.125));
    let matrix = HostMatrix { rows: 32, cols: 64, data: HostData::F32(weight) };
    let product = |precision| {
        backend.embedding(table(), 0, precision).expect("embedding");
        let weight = backend.linear_weight(matrix.clone(), precision).expect("weight");
        backend.linear(&backend.to_device(4, 64, x.clone()), &weight, None).data().to_vec()
    };
    let (wide, rounded) = (product(Precision::F32), product(Precision::Bf16));
    assert!(rounded.iter().all(is_bf16) && !wide.iter().all(is_bf16));
    let far = difference(&rounded, &wide);
    assert!((1e-4..2e-2).contains(&far.max), "{far}");
    // The scores of routers stay f32.
    let router = backend.linear_weight(matrix.clone(), Precision::F32).expect("router");
    let scores = backend.linear(&backend.to_device(4, 64, x.clone()), &router, None);
    assert!(!scores.data().iter().all(is_bf16));
}

#[test]
fn products_with_fp8_weights_quantize_activations() {
    let mut random = Random::new(5);
    let backend = devices().open_beside(0).expect("cpu");
    let codes: Vec<u8> = (0..3 * 200).map(|_| random.below(0x7f) as u8).collect();
    let data = HostData::Fp8 { codes: codes.into(), scales: vec![0.01, 0.02], block: [128, 128] };
    let matrix = HostMatrix { rows: 3, cols: 200, data };
    let HostData::F32(numbers) = matrix.clone().into_form(HostForm::F32).expect("f32").data else { panic!("f32") };
    let x = random.numbers(2 * 200, 1.0);
    let weight = backend.linear_weight(matrix, Precision::Bf16).expect("weight");
    let got = backend.linear(&backend.to_device(2, 200, x.clone()), &weight, None);
    let of = |x: &[f32]| reference::linear(x, &numbers, 200, None);
    assert_eq!(got.data(), of(&reference::quantize_fp8(&x, 200)));
    assert_ne!(got.data(), of(&x));
}
