mod hold;
mod interleave;
mod replay;

use super::*;
