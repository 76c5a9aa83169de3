// Tests of the kernels on the CPU. With `--expected FILE`: writes what ptx_test.cu must give on a device.
#include "attention.h"
#include "flash.h"
#include "delta.h"
#include "draw.h"
#include "experts.h"
#include "faults.h"
#include "lanes.h"
#include "low_rank.h"
#include "places.h"
#include "products.h"
#include "ptx.h"
#include "quantized.h"
#include "ranks.h"
#include "rows.h"

int main(int argc, char **argv) {
  if (argc == 3 && std::string(argv[1]) == "--expected") {
    ptx_tests::write_expected(argv[2]);
    return 0;
  }
  fault_tests::test();
  ptx_tests::test();
  row_tests::test();
  low_rank_tests::test();
  product_tests::test();
  quantized_tests::test();
  expert_tests::test();
  attention_tests::test();
  flash_tests::test();
  place_tests::test();
  draw_tests::test();
  delta_tests::test();
  rank_tests::test();
  lane_tests::test();
  printf("%d checks failed\n", check::failures);
  return check::failures ? 1 : 0;
}
