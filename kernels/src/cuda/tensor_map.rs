//! Tensor maps: what the copies of TMA know of a matrix on the device.

use cudarc::driver::sys;

use super::error::check;
use super::{DeviceBuffer, Result};

/// A tensor map of two or three dimensions.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct TensorMap(pub [u64; 16]);

/// What a tensor map describes: innermost dimension first, strides and boxes in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorBoxes {
    pub element: MapElement,
    pub dims: [usize; 3],
    /// Of the second and third dimension.
    pub strides: [usize; 2],
    pub boxes: [usize; 3],
    /// Boxes of 32, 64 or 128 bytes are stored with the swizzle of as many bytes.
    pub swizzled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapElement {
    Byte,
    Bf16,
    F32,
    Word,
}

impl MapElement {
    pub fn bytes(self) -> usize {
        match self {
            MapElement::Byte => 1,
            MapElement::Bf16 => 2,
            MapElement::F32 | MapElement::Word => 4,
        }
    }
}

/// Addresses and strides of tensor maps are multiples of this.
pub const MAP_ALIGNMENT: usize = 16;
/// The largest side of a box, in numbers.
const MAP_BOX: usize = 256;

/// For boxes that are so many bytes wide.
fn swizzle_of(bytes: usize) -> Option<sys::CUtensorMapSwizzle> {
    match bytes {
        32 => Some(sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B),
        64 => Some(sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B),
        128 => Some(sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B),
        _ => None,
    }
}

impl TensorBoxes {
    /// The bytes from the first number to the end of the last.
    pub fn bytes(&self) -> usize {
        let [columns, rows, matrices] = self.dims;
        let last = (rows - 1) * self.strides[0] + (matrices - 1) * self.strides[1] + columns;
        last * self.element.bytes()
    }

    /// Whether the driver takes it.
    pub fn fits(&self, address: u64) -> bool {
        let bytes = self.element.bytes();
        let strides = if self.dims[2] > 1 { &self.strides[..] } else { &self.strides[..1] };
        (address as usize).is_multiple_of(MAP_ALIGNMENT)
            && strides.iter().all(|stride| (stride * bytes).is_multiple_of(MAP_ALIGNMENT))
            && self.dims.iter().all(|&dim| dim > 0 && dim <= u32::MAX as usize)
            && self.boxes.iter().all(|&side| side > 0 && side <= MAP_BOX)
            && (self.boxes[0] * bytes).is_multiple_of(MAP_ALIGNMENT)
            && (!self.swizzled || swizzle_of(self.boxes[0] * bytes).is_some())
    }
}

impl TensorMap {
    /// Of memory of the device from an address on, which the caller has compared with `boxes.bytes()`.
    pub fn new(address: u64, boxes: &TensorBoxes) -> Result<TensorMap> {
        assert!(boxes.fits(address), "a tensor map at {address:#x} of {boxes:?}");
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let TensorBoxes { element, dims, strides, boxes: sides, swizzled } = *boxes;
        let kind = match element {
            MapElement::Byte => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            MapElement::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            MapElement::F32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            MapElement::Word => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_INT32,
        };
        let swizzle = swizzle_of(sides[0] * element.bytes()).filter(|_| swizzled);
        let swizzle = swizzle.unwrap_or(sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE);
        let (dims, strides) = (dims.map(|dim| dim as u64), strides.map(|stride| (stride * element.bytes()) as u64));
        let (sides, steps) = (sides.map(|side| side as u32), [1u32; 3]);
        let rank = if dims[2] > 1 { 3 } else { 2 };
        // SAFETY: writes the map; the arrays have an entry for each of the dimensions, the strides one less.
        check("cuTensorMapEncodeTiled", unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                kind,
                rank,
                address as *mut _,
                dims.as_ptr(),
                strides.as_ptr(),
                sides.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        })?;
        Ok(TensorMap(map.opaque))
    }

    /// Of bf16 [rows, cols], in boxes of 64 x 64 with the 128-byte swizzle. `cols` is a multiple of 8.
    pub fn boxes_of_64(data: &DeviceBuffer, rows: usize, cols: usize) -> Result<TensorMap> {
        let boxes = TensorBoxes {
            element: MapElement::Bf16,
            dims: [cols, rows, 1],
            strides: [cols, 0],
            boxes: [64, 64, 1],
            swizzled: true,
        };
        assert!(boxes.bytes() <= data.bytes(), "{boxes:?} in a buffer of {} bytes", data.bytes());
        TensorMap::new(data.address(), &boxes)
    }
}
