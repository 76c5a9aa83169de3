//! `rein selftest`: checks that the devices of this machine compute what the CPU does.

mod bench;
mod engine;
mod fixtures;
mod invariance;
mod models;
mod play;
mod report;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use rein_kernels::cuda::selftest::{self, Row};
use rein_kernels::cuda::{CudaDevice, Driver};
use rein_worker::rank::DeviceChoice;

use self::report::{Report, ReportRow, Section};
use crate::args::{SelftestArgs, SelftestSection};
use crate::terminal;

/// The exit code is 1 if a section failed.
pub fn run(args: &SelftestArgs) -> Result<ExitCode, Box<dyn Error>> {
    let driver = Driver::open()?;
    let device = driver.device(args.device)?;
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.properties.name.clone(),
        sections: BTreeMap::new(),
    };
    if let Some(path) = &args.resume {
        report.sections = report.passed_before(path, args.reduced)?;
    }
    for section in &args.sections {
        let name = section.name();
        if report.sections.contains_key(name) {
            terminal::out(format_args!("{name}: passed before"));
            continue;
        }
        let begin = Instant::now();
        let found = execute(*section, args, &driver, &device);
        let reduced = args.reduced && section.has_sets();
        let found = Section::new(found, begin.elapsed().as_secs_f64(), reduced);
        terminal::out(found.markdown(name));
        report.sections.insert(name.to_owned(), found);
        // After every section, so that a run which is cut off leaves what it found.
        if let Some(path) = args.report.as_ref().or(args.resume.as_ref()) {
            report.write(path)?;
        }
    }
    let passed = report.sections.values().all(|section| section.passed);
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn execute(
    section: SelftestSection,
    args: &SelftestArgs,
    driver: &Driver,
    device: &CudaDevice,
) -> Result<Vec<ReportRow>, Box<dyn Error>> {
    let rows = |found: Vec<Row>| found.into_iter().map(ReportRow::from).collect();
    let devices = DeviceChoice::Cuda(vec![args.device]);
    let small = |few: &[&str]| fixtures::models(&args.fixtures, args.reduced.then_some(few));
    match section {
        SelftestSection::Device => Ok(rows(selftest::device(driver, device)?)),
        SelftestSection::Ptx => Ok(rows(selftest::ptx(device)?)),
        SelftestSection::Ops => Ok(rows(selftest::ops(device)?)),
        SelftestSection::Models => models::run(&small(models::REDUCED)?, &devices, &DeviceChoice::Cpu, args.reduced),
        SelftestSection::Invariance => invariance::run(&small(invariance::REDUCED)?, &devices, args.reduced),
        SelftestSection::Engine => engine::run(&small(engine::REDUCED)?, &devices, args.reduced),
        SelftestSection::Bench => bench::run(&small(&[bench::TINY])?, &devices, args.reduced),
    }
}
