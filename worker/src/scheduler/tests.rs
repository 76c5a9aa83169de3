mod hold;
mod interleave;
mod ledger;
mod replay;
mod shares;
mod tables;

use rein_proto::internal::{Drawn, RowResult, StepResult, TokenLogprob};

use super::*;
