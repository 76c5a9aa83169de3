mod hold;
mod interleave;
mod ledger;
mod replay;
mod tables;

use super::*;
