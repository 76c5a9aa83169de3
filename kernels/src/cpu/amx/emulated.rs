//! Tile registers for processors without any: their instructions are illegal there, and the handler of that signal
//! executes them. Encodings are those of Intel's manual, volume 2.

use std::cell::RefCell;
use std::sync::Once;

use super::{Shape, WIDTH, dots};

/// Of each thread, as the registers are.
struct Registers {
    /// Rows and bytes of a row.
    shapes: [(usize, usize); 8],
    words: [[[u32; WIDTH / 4]; 16]; 8],
}

thread_local! {
    static REGISTERS: RefCell<Registers> =
        const { RefCell::new(Registers { shapes: [(0, 0); 8], words: [[[0; WIDTH / 4]; 16]; 8] }) };
}

/// From now on an illegal instruction of AMX is executed.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler has the type that SA_SIGINFO asks for. It touches nothing but this thread's registers and
        // the memory that the instruction names.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGILL, &action, std::ptr::null_mut()), 0);
        }
    });
}

unsafe extern "C" fn handle(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system gives a context, whose instruction pointer is at the instruction.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = registers[libc::REG_RIP as usize] as usize as *const u8;
        match Instruction::decode(at, registers) {
            Some(instruction) => {
                registers[libc::REG_RIP as usize] += instruction.length as i64;
                REGISTERS.with_borrow_mut(|tiles| instruction.execute(tiles));
            }
            // It is met again, and ends the process as usual.
            None => drop(libc::signal(libc::SIGILL, libc::SIG_DFL)),
        }
    }
}

#[derive(Clone, Copy)]
struct Instruction {
    opcode: u8,
    /// The prefix that its VEX bits stand for: none, 66, F3, F2.
    prefix: u8,
    /// Registers of ModRM.reg, ModRM.rm and VEX.vvvv.
    operands: [usize; 3],
    /// Whether ModRM names memory, and where it is, with the bytes from row to row.
    memory: Option<(*mut u8, usize)>,
    length: usize,
}

impl Instruction {
    /// # Safety
    /// `at` is an instruction.
    unsafe fn decode(at: *const u8, registers: &[i64; 23]) -> Option<Instruction> {
        // SAFETY: bytes are read as far as those before them say that the instruction goes on.
        let byte = |i: usize| unsafe { *at.add(i) };
        // A VEX prefix of three bytes, map 0F38, W = 0, L = 0.
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 || byte(2) & 0x84 != 0 {
            return None;
        }
        let (extra_index, extra_base) = (8 * usize::from(!byte(1) >> 6 & 1), 8 * usize::from(!byte(1) >> 5 & 1));
        let (prefix, vvvv) = (byte(2) & 3, usize::from(!byte(2) >> 3 & 0xf));
        let (opcode, modrm) = (byte(3), byte(4));
        let (mode, reg, rm) = (modrm >> 6, usize::from(modrm >> 3 & 7), usize::from(modrm & 7));
        let (mut length, mut memory) = (5, None);
        if mode != 3 {
            // By the number that encodings have for them.
            const ORDER: [i32; 16] = [
                libc::REG_RAX,
                libc::REG_RCX,
                libc::REG_RDX,
                libc::REG_RBX,
                libc::REG_RSP,
                libc::REG_RBP,
                libc::REG_RSI,
                libc::REG_RDI,
                libc::REG_R8,
                libc::REG_R9,
                libc::REG_R10,
                libc::REG_R11,
                libc::REG_R12,
                libc::REG_R13,
                libc::REG_R14,
                libc::REG_R15,
            ];
            let value = |register: usize| registers[ORDER[register] as usize];
            let (mut base, mut stride) = (rm + extra_base, 0);
            if rm == 4 {
                let sib = byte(5);
                length += 1;
                base = usize::from(sib & 7) + extra_base;
                let index = usize::from(sib >> 3 & 7) + extra_index;
                stride = if index == 4 { 0 } else { value(index) << (sib >> 6) };
            }
            if mode == 0 && base % 8 == 5 {
                return None;
            }
            let offset = match mode {
                0 => 0,
                1 => i64::from(byte(length) as i8),
                _ => i64::from(i32::from_le_bytes(std::array::from_fn(|i| byte(length + i)))),
            };
            length += [0, 1, 4][usize::from(mode)];
            memory = Some(((value(base) + offset) as usize as *mut u8, stride as usize));
        }
        let known = matches!(opcode, 0x49 | 0x4b | 0x5c | 0x5e);
        known.then_some(Instruction { opcode, prefix, operands: [reg, rm, vvvv], memory, length })
    }

    /// # Safety
    /// Memory that the instruction names is there.
    unsafe fn execute(self, tiles: &mut Registers) {
        let [reg, rm, vvvv] = self.operands;
        // SAFETY: the caller's promise; a register has the rows and bytes of its shape.
        unsafe {
            match (self.opcode, self.prefix, self.memory) {
                // LDTILECFG
                (0x49, 0, Some((from, _))) => {
                    let shape = from.cast::<Shape>().read();
                    assert_eq!((shape.palette, shape.start_row), (1, 0));
                    for i in 0..8 {
                        let (rows, bytes) = (usize::from(shape.rows[i]), usize::from(shape.row_bytes[i]));
                        assert!(rows <= 16 && bytes <= WIDTH && (rows == 0) == (bytes == 0), "{i}: {rows} x {bytes}");
                        tiles.shapes[i] = (rows, bytes);
                    }
                    tiles.words = [[[0; WIDTH / 4]; 16]; 8];
                }
                // TILERELEASE
                (0x49, 0, None) => tiles.shapes = [(0, 0); 8],
                // TILEZERO
                (0x49, 3, None) => {
                    assert_ne!(tiles.shapes[reg].0, 0, "register {reg} has no shape");
                    tiles.words[reg] = [[0; WIDTH / 4]; 16];
                }
                // TILELOADD, TILESTORED
                (0x4b, prefix @ (2 | 3), Some((memory, stride))) => {
                    let (rows, bytes) = tiles.shapes[reg];
                    assert_ne!(rows, 0, "register {reg} has no shape");
                    for (r, row) in tiles.words[reg].iter_mut().enumerate().take(rows) {
                        let (memory, row) = (memory.wrapping_add(r * stride), row.as_mut_ptr().cast::<u8>());
                        match prefix {
                            3 => memory.copy_to_nonoverlapping(row, bytes),
                            _ => memory.copy_from_nonoverlapping(row, bytes),
                        }
                    }
                }
                // TDPBF16PS; TDPBUUD, TDPBUSD, TDPBSUD, TDPBSSD
                (0x5c, 2, None) | (0x5e, _, None) => self.multiply(tiles, [reg, rm, vvvv]),
                _ => panic!("not an instruction of AMX: {:x} {:x}", self.opcode, self.prefix),
            }
        }
    }

    fn multiply(self, tiles: &mut Registers, [to, a, b]: [usize; 3]) {
        let [(rows, row_bytes), (a_rows, a_bytes), (b_rows, b_bytes)] = [to, a, b].map(|i| tiles.shapes[i]);
        assert!(
            rows > 0 && rows == a_rows && row_bytes == b_bytes && a_bytes == 4 * b_rows && to != a && to != b && a != b,
            "shapes: {:?}",
            tiles.shapes
        );
        for r in 0..rows {
            for c in 0..row_bytes / 4 {
                let (left, right) = (tiles.words[a][r], tiles.words[b]);
                let (left, right) = (left.into_iter().take(b_rows), right.iter().take(b_rows).map(|row| row[c]));
                let sum = &mut tiles.words[to][r][c];
                *sum = match self.opcode {
                    0x5c => dots::of_pairs(f32::from_bits(*sum), left, right).to_bits(),
                    // The prefixes in their order: both, the second, the first, none without a sign.
                    _ => {
                        let signed = [self.prefix & 2 != 0, self.prefix & 1 != 0];
                        dots::of_bytes(*sum as i32, signed, left, right) as u32
                    }
                };
            }
        }
    }
}
