//! Checkpoints that change after they were opened: either the original bytes are loaded, or loading fails.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::AtomicBool;

use super::*;

struct Opened {
    copy: Copied,
    path: PathBuf,
    model: ModelLoader,
    whole: Vec<u8>,
}

/// A model as a worker opens it. With `hashed`, all bytes are known.
fn opened(hashed: bool) -> Opened {
    let copy = Copied::of(&fixture("deepseek_v3"));
    let path = copy.path().join("model.safetensors");
    let model = ModelLoader::open(copy.path(), &f32_options()).expect("opens");
    if hashed {
        model.hashes().expect("hashes");
    }
    let whole = fs::read(&path).expect("file");
    Opened { copy, path, model, whole }
}

impl Opened {
    fn placement(&self, ranks: usize) -> Arc<Placement> {
        Arc::new(place(&self.model.shape(), ranks, 1).expect("a placement"))
    }

    fn seat(
        &self,
        ranks: usize,
        resident_weights: Vec<ResidentWeights>,
        return_weights: Option<Sender<ResidentWeights>>,
    ) -> Result<Seated, LoadError> {
        let links = collective::threads::group(ranks).into_iter().map(|link| Box::new(link) as Box<dyn Collective>);
        self.model.seat(&self.placement(ranks), links.collect(), resident_weights, return_weights, &mut |_, _| ())
    }

    fn scores(&self) -> Result<Vec<RowResult>, LoadError> {
        let mut group = self.seat(1, Vec::new(), None)?.executor().expect("it leads");
        let step = Step { epoch: 1, rows: vec![row(1, &[5, 6, 7], 0, &[0], After::Draw)], ..Step::default() };
        Ok(group.execute(step).expect("executes").rows)
    }

    #[track_caller]
    fn is_refused(&self, named: &str) {
        let error = self.scores().expect_err("other bytes");
        assert!(error.is_final(), "{error}");
        assert!(error.to_string().contains("model.safetensors") && error.to_string().contains(named), "{error}");
        // It also fails later, whatever the file contains by then.
        assert!(self.scores().expect_err("other bytes").is_final());
    }

    /// Inverts the last tensor's bytes in place.
    fn write_in_place(&self) {
        let tail: Vec<u8> = self.whole[self.whole.len() - 64..].iter().map(|byte| !byte).collect();
        let file = OpenOptions::new().write(true).open(&self.path).expect("file");
        file.write_all_at(&tail, self.whole.len() as u64 - 64).expect("write");
    }

    fn keep_time(&self, write: impl FnOnce()) {
        let before = fs::metadata(&self.path).and_then(|meta| meta.modified()).expect("time");
        write();
        File::options().write(true).open(&self.path).and_then(|file| file.set_modified(before)).expect("time");
    }
}

#[test]
fn a_file_that_was_written_in_place_is_rejected() {
    for hashed in [false, true] {
        let it = opened(hashed);
        it.write_in_place();
        it.is_refused("was written to");
        let it = opened(hashed);
        fs::copy(&it.path, it.copy.path().join("other"))
            .and_then(|_| fs::copy(it.copy.path().join("other"), &it.path))
            .expect("copy");
        it.is_refused("was written to");
    }
}

#[test]
fn a_file_whose_time_was_reset_is_rejected_for_its_bytes() {
    let it = opened(true);
    it.keep_time(|| it.write_in_place());
    it.is_refused("has other bytes");
    // Bytes that were read before are known without hashes of the whole file.
    let it = opened(false);
    it.scores().expect("loads");
    it.keep_time(|| it.write_in_place());
    it.is_refused("has other bytes");
}

#[test]
fn a_file_that_was_truncated_or_grew_is_rejected() {
    for (len, named) in [(0, "cut short"), (4096, "cut short"), (1 << 30, "bytes and has 1073741824")] {
        let it = opened(true);
        File::options().write(true).open(&it.path).and_then(|file| file.set_len(len)).expect("length");
        it.is_refused(named);
    }
}

#[test]
fn a_file_that_was_replaced_by_rename_is_read_as_it_was() {
    let it = opened(true);
    let want = it.scores().expect("loads");
    let other = it.copy.path().join("other");
    fs::write(&other, vec![7; it.whole.len()]).expect("write");
    fs::rename(&other, &it.path).expect("rename");
    assert_eq!(it.scores().expect("loads"), want);
    fs::remove_file(&it.path).expect("remove");
    assert_eq!(it.scores().expect("loads"), want);
}

#[test]
fn owner_and_name_of_a_file_may_change() {
    let it = opened(true);
    let want = it.scores().expect("loads");
    fs::set_permissions(&it.path, fs::Permissions::from_mode(0o600)).expect("mode");
    fs::hard_link(&it.path, it.copy.path().join("link")).expect("link");
    assert_eq!(it.scores().expect("loads"), want);
}

#[test]
fn loaded_weights_need_no_file() {
    let it = opened(true);
    let (return_weights, returned) = bounded(1);
    drop(it.seat(1, Vec::new(), Some(return_weights.clone())).expect("loads"));
    it.write_in_place();
    let back = returned.iter().take(1).collect();
    it.seat(1, back, Some(return_weights)).expect("nothing is read");
}

#[test]
fn experts_of_a_changed_file_are_not_loaded() {
    let it = opened(true);
    let seated = it.seat(2, Vec::new(), None).expect("loads");
    let layouts = seated.layouts().clone();
    let mut group = seated.executor().expect("it leads");
    let step = Step { epoch: 1, rows: vec![row(1, &[5, 6, 7], 0, &[0], After::Draw)], ..Step::default() };
    let want = group.execute(step.clone()).expect("executes").rows;
    it.keep_time(|| it.write_in_place());
    let mut swapped = (*it.placement(2)).clone();
    swapped.layout = 1;
    let [a, b] = &mut swapped.ranks[..] else { panic!("two ranks") };
    std::mem::swap(&mut a.experts, &mut b.experts);
    let error = layouts.load(&Arc::new(swapped), &AtomicBool::new(false)).expect_err("other bytes");
    assert!(error.is_final(), "{error}");
    assert_eq!(group.execute(step.clone()).expect("the group continues").rows, want);
}
