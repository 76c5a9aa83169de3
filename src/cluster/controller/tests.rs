use super::*;

#[test]
fn the_operations_page_lists_the_metrics() {
    super::super::page::assert_documented("Controllers", &metrics(&ControllerStats::default()));
}
