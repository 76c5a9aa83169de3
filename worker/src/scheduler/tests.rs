mod hold;
mod interleave;
mod ledger;
mod replay;
mod shares;
mod tables;

use super::*;
