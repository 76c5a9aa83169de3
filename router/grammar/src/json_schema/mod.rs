//! What the grammar's compiler, the validator and the parser share about JSON Schema: keywords, drafts, references,
//! patterns of names. It neither compiles schemas nor validates values.

mod argument_types;
mod case_folding;
mod draft;
mod keywords;
mod mend;
mod names;
mod pattern;
mod places;
mod refs;
mod regex_size;
mod subschemas;
mod words;

use serde_json::{Map, Value};

pub(crate) use argument_types::{Types, declared, declares};
pub(crate) use case_folding::{folded_characters, folded_characters_of_lark};
pub(crate) use draft::{counting, fault, named};
pub(crate) use keywords::{
    TYPES, count, each, is_annotation, is_type, modern, percent_decoded, size, size_of_map, types,
};
pub(crate) use mend::{Mended, mended};
pub(crate) use names::{matches, steps};
pub(crate) use pattern::{PlainPattern, SchemaPattern, within_budget};
pub(crate) use places::{SchemaPlace, SchemaPlaces};
pub(crate) use refs::{local, mentions};
pub(crate) use regex_size::{backtracks, compiled_bytes, whole};

/// A schema that is an object.
pub(crate) type Schema = Map<String, Value>;
