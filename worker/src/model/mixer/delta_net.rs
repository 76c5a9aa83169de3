//! A gated delta net (arXiv:2412.06464), as in Qwen3-Next and Qwen3.5: its state does not grow with the sequence.

use std::ops::Range;

use rein_control_plane::RankPlacement;
use rein_control_plane::placement::share;
use rein_kernels::{Backend, DeltaSpec, DeltaVectors, Devices, Result as KernelResult};

use super::{Mixer, MixerParts, StateSize, StateSpec, opened};
use crate::checkpoint::LoadError;
use crate::model::linear::{LinearSpec, Norm};
use crate::model::load::{LoadedLinear, LoadedNorm, Loader, Pass, Precisions};

#[derive(Debug, Clone)]
pub struct DeltaNet {
    pub inputs: DeltaInputs,
    pub o: LinearSpec,
    /// A tensor [channels of all heads, 1, taps]: all queries, all keys, all values.
    pub conv: String,
    /// Tensors [value_heads].
    pub log_decay: String,
    pub step_bias: String,
    /// Of each value head's result.
    pub norm: Norm,
    /// Of all heads.
    pub spec: DeltaSpec,
}

/// How the inputs are stored.
#[derive(Debug, Clone)]
pub enum DeltaInputs {
    /// Of each key head its query, its key, and the values and gates of its value heads; and beta and a of these.
    ByHead([LinearSpec; 2]),
    /// All queries, all keys, all values; then gates, beta and a, each of all value heads.
    Apart(Box<[LinearSpec; 4]>),
    /// The same, but beta and a in one matrix by key head.
    ValuesApart(Box<[LinearSpec; 3]>),
}

impl DeltaNet {
    /// The two matrices by key head.
    fn load_inputs<D: Devices>(&self, loader: &Loader<D>) -> Result<[LoadedLinear<D::Backend>; 2], LoadError> {
        let DeltaSpec { key_heads, key_dim, value_dim, .. } = self.spec;
        let (keys, group) = (key_heads * key_dim, self.spec.group());
        let heads = share(key_heads, loader.ranks(), loader.rank().rank);
        let of = |head: usize, width: usize| head * width..(head + 1) * width;
        let (qkv, z, ba) = match &self.inputs {
            DeltaInputs::ByHead([qkvz, ba]) => return Ok([loader.linear(qkvz)?, loader.linear(ba)?]),
            DeltaInputs::Apart(inputs) => {
                let [qkv, z, b, a] = &**inputs;
                let ba = heads.clone().flat_map(|head| [(b, of(head, group)), (a, of(head, group))]);
                (qkv, z, loader.joined(ba)?)
            }
            DeltaInputs::ValuesApart(inputs) => {
                let [qkv, z, ba] = &**inputs;
                (qkv, z, loader.linear(ba)?)
            }
        };
        let after = |first: usize, rows: Range<usize>| first + rows.start..first + rows.end;
        let qkvz = heads.flat_map(|head| {
            let (key, values) = (of(head, key_dim), of(head, group * value_dim));
            [(qkv, key.clone()), (qkv, after(keys, key)), (qkv, after(2 * keys, values.clone())), (z, values)]
        });
        Ok([loader.joined(qkvz)?, ba])
    }

    fn on(&self, ranks: usize) -> DeltaSpec {
        let DeltaSpec { key_heads, value_heads, .. } = self.spec;
        DeltaSpec { key_heads: key_heads / ranks, value_heads: value_heads / ranks, ..self.spec }
    }

    pub fn load<D: Devices>(&self, loader: &Loader<D>) -> Result<DeltaNetMixer<D::Backend>, LoadError> {
        let spec = self.on(loader.ranks());
        let heads = share(self.spec.value_heads, loader.ranks(), loader.rank().rank);
        let [qkvz, ba] = self.load_inputs(loader)?;
        Ok(DeltaNetMixer {
            qkvz,
            ba,
            o: loader.linear(&self.o)?,
            conv: loader.backend.vector(self.conv_by_head(loader)?)?,
            log_decay: loader.vector(&self.log_decay, heads.clone())?,
            step_bias: loader.vector(&self.step_bias, heads)?,
            norm: loader.norm(&self.norm)?,
            spec,
            states: None,
        })
    }

    /// The convolution's weights of this rank's key heads [key_heads, taps, channels].
    fn conv_by_head<D: Devices>(&self, loader: &Loader<D>) -> Result<Vec<f32>, LoadError> {
        let DeltaSpec { key_heads, key_dim, value_dim, taps, .. } = self.spec;
        let (keys, values) = (key_heads * key_dim, self.spec.group() * value_dim);
        let mut weights = Vec::new();
        for head in share(key_heads, loader.ranks(), loader.rank().rank) {
            let parts =
                [(head * key_dim, key_dim), (keys + head * key_dim, key_dim), (2 * keys + head * values, values)];
            let mut of_head = Vec::new();
            for (first, len) in parts {
                of_head.extend(loader.numbers(&self.conv, first * taps..(first + len) * taps)?);
            }
            weights.extend((0..taps).flat_map(|tap| of_head.iter().skip(tap).step_by(taps).copied()));
        }
        Ok(weights)
    }
}

impl MixerParts for DeltaNet {
    fn linears(&self) -> Vec<&LinearSpec> {
        let inputs = match &self.inputs {
            DeltaInputs::ByHead(inputs) => &inputs[..],
            DeltaInputs::Apart(inputs) => &inputs[..],
            DeltaInputs::ValuesApart(inputs) => &inputs[..],
        };
        inputs.iter().chain([&self.o]).collect()
    }

    fn norms(&self) -> Vec<&Norm> {
        vec![&self.norm]
    }

    fn vectors(&self) -> Vec<(String, Vec<usize>)> {
        let DeltaSpec { key_heads, value_heads, taps, .. } = self.spec;
        vec![
            (self.conv.clone(), vec![key_heads * self.spec.channels(), 1, taps]),
            (self.log_decay.clone(), vec![value_heads]),
            (self.step_bias.clone(), vec![value_heads]),
        ]
    }

    fn state(&self, _: &RankPlacement, ranks: usize) -> StateSpec {
        StateSpec::Recurrent { numbers: self.on(ranks).state_numbers() }
    }

    /// It sees the positions before in its state.
    fn products(&self) -> (usize, Option<usize>) {
        (0, Some(0))
    }

    fn own_heads(&self) -> Option<usize> {
        Some(self.spec.key_heads)
    }
}

pub struct DeltaNetMixer<B: Backend> {
    qkvz: LoadedLinear<B>,
    ba: LoadedLinear<B>,
    o: LoadedLinear<B>,
    conv: B::Vector,
    log_decay: B::Vector,
    step_bias: B::Vector,
    norm: LoadedNorm<B>,
    spec: DeltaSpec,
    states: Option<B::States>,
}

impl<B: Backend> Mixer<B> for DeltaNetMixer<B> {
    fn open(&mut self, b: &B, size: &StateSize, _: Precisions) -> KernelResult<()> {
        self.states = Some(b.states(size.cells, self.spec.state_numbers())?);
        Ok(())
    }

    fn close(&mut self) {
        self.states = None;
    }

    fn forward(&mut self, pass: Pass<B>, x: &B::Tensor) -> KernelResult<B::Tensor> {
        let Pass { b, batch, .. } = pass;
        let vectors = DeltaVectors {
            conv: &self.conv,
            log_decay: &self.log_decay,
            step_bias: &self.step_bias,
            norm: &self.norm.weight,
        };
        let (qkvz, ba) = (self.qkvz.apply(pass, x), self.ba.apply(pass, x));
        let states = opened(&mut self.states)?;
        Ok(self.o.apply(pass, &b.delta_net(batch, &qkvz, &ba, &vectors, states, &self.spec)))
    }
}
