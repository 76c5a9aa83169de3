mod hold;
mod interleave;
mod ledger;
mod oracle;
mod replay;
mod shares;
mod tables;

use rein_proto::internal::{Drawn, RowResult, StepResult, TokenLogprob};

use super::*;
