//! `rein selftest`: checks that the devices of this machine compute what the CPU does.

mod bench;
mod check;
mod child;
mod engine;
mod fixtures;
mod invariance;
mod models;
mod play;
mod ranks;
mod report;
mod slice;
#[cfg(test)]
mod tests;
mod watch;
mod weights;

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rein_kernels::cuda::selftest;
use rein_kernels::cuda::{CudaDevice, Driver};
use rein_worker::rank::{DeviceChoice, Gpus};

use self::check::SectionCheck;
use self::report::{Report, Section};
use self::watch::{ScratchDir, SectionProcess};
use crate::args::{SelftestArgs, SelftestSection};
use crate::terminal;

/// The exit code is 1 if a section failed.
pub fn run(args: &SelftestArgs) -> Result<ExitCode, Box<dyn Error>> {
    let driver = Driver::open()?;
    let device = driver.device(args.device)?;
    if let (Some(first), [section]) = (args.from_check, &*args.sections) {
        child::run(checks(*section, args, &driver, &device)?, first, || device.memory().is_ok())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.properties.name.clone(),
        sections: BTreeMap::new(),
    };
    // Its memory is for the processes that run the checks.
    drop(device);
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
        let process = SectionProcess {
            arguments: arguments(*section, args),
            check_time: Duration::from_secs_f64(args.check_time),
            scratch: ScratchDir::new()?,
        };
        let found = process.run();
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

/// The command line of a process that runs the checks of one section.
fn arguments(section: SelftestSection, args: &SelftestArgs) -> Vec<OsString> {
    let mut all: Vec<OsString> = ["selftest", "--sections", section.name(), "--device"].map(Into::into).into();
    all.push(args.device.to_string().into());
    all.extend(["--fixtures".into(), args.fixtures.clone().into_os_string()]);
    if let Some(kernels) = args.gpu_kernels.to_possible_value() {
        all.extend(["--gpu-kernels".into(), kernels.get_name().into()]);
    }
    if args.reduced {
        all.push("--reduced".into());
    }
    all
}

fn checks<'a>(
    section: SelftestSection,
    args: &SelftestArgs,
    driver: &'a Driver,
    device: &'a CudaDevice,
) -> Result<Vec<SectionCheck<'a>>, Box<dyn Error>> {
    let kernels = args.gpu_kernels.into();
    let devices = DeviceChoice::Cuda(Gpus { indices: vec![args.device], kernels });
    let small = |few: &[&str]| fixtures::models(&args.fixtures, args.reduced.then_some(few));
    Ok(match section {
        SelftestSection::Device => selftest::device(driver, device).into_iter().map(Into::into).collect(),
        SelftestSection::Ptx => selftest::ptx(device)?.into_iter().map(Into::into).collect(),
        SelftestSection::Ops => selftest::ops(device)?.into_iter().map(Into::into).collect(),
        SelftestSection::Fast => selftest::fast(device)?.into_iter().map(Into::into).collect(),
        SelftestSection::Ranks => ranks::checks(small(ranks::REDUCED)?, args.device, kernels),
        SelftestSection::Models => {
            let mut all = models::checks(small(models::REDUCED)?, &devices, &DeviceChoice::Cpu, args.reduced);
            all.extend(models::embeddings(fixtures::embedding_models(&args.fixtures)?, &devices));
            all
        }
        SelftestSection::Invariance => invariance::checks(small(invariance::REDUCED)?, &devices, args.reduced),
        SelftestSection::Engine => engine::checks(small(engine::REDUCED)?, &devices, args.reduced),
        SelftestSection::Slice => slice::checks(&devices, || selftest::copy_rate(device), args.reduced),
        SelftestSection::Bench => bench::checks(small(&[bench::TINY])?, &devices, args.reduced),
    })
}
