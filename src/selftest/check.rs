//! The parts of a section. Each depends on no other, so that it can run in a process of its own if another breaks the
//! device. It does not know what they check.

use std::error::Error;

use rein_kernels::cuda::selftest::{DeviceCheck, Row};

use super::report::ReportRow;

/// Gets each row as it is found, so that those before an error are not lost.
pub type ReportSink<'a> = dyn FnMut(ReportRow) + 'a;

pub type CheckResult = Result<(), Box<dyn Error>>;

pub struct SectionCheck<'a> {
    pub name: String,
    pub run: Box<dyn FnOnce(&mut ReportSink<'_>) -> CheckResult + 'a>,
}

impl<'a> SectionCheck<'a> {
    pub fn new(name: impl Into<String>, run: impl FnOnce(&mut ReportSink<'_>) -> CheckResult + 'a) -> Self {
        SectionCheck { name: name.into(), run: Box::new(run) }
    }

    /// A check with one row, which has its name.
    pub fn of_row(name: impl Into<String>, find: impl FnOnce() -> Result<(String, bool), Box<dyn Error>> + 'a) -> Self {
        let name = name.into();
        Self::new(name.clone(), move |rows| {
            let (value, passed) = find()?;
            rows(ReportRow::new(name, value, passed));
            Ok(())
        })
    }
}

impl<'a> From<DeviceCheck<'a>> for SectionCheck<'a> {
    fn from(DeviceCheck { name, run }: DeviceCheck<'a>) -> Self {
        Self::new(name, move |rows| Ok(run(&mut |row: Row| rows(row.into()))?))
    }
}
