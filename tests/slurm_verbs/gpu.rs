//! `slurminit gpu`: a GPU is released for work on the host, and returned.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use super::fake::{Fake, wait_for_sleep};
use faults::fault::{FaultKind, Policy};
use faults::report::{FILE, GpuReport, OpenFault, Release, Report};
use faults::sample::Identity;
use model::inventory::Vendor;
use model::process_id::ProcessId;

/// A container with an agent and two GPUs. The test writes the agent's reports.
struct Container {
    fake: Fake,
    agent: Child,
    report: Report,
}

impl Drop for Container {
    fn drop(&mut self) {
        self.agent.kill().unwrap();
        self.agent.wait().unwrap();
    }
}

impl Container {
    fn new() -> Self {
        let fake = Fake::new();
        let mut agent = Command::new("sh");
        agent.args(["-c", "trap '' USR1; echo ready; exec sleep 60"]).stdout(Stdio::piped());
        let mut agent = agent.spawn().unwrap();
        agent.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
        let stat = sys::proc::stat(agent.id().try_into().unwrap()).unwrap();
        let process = ProcessId { pid: agent.id().try_into().unwrap(), start_ticks: stat.start };
        let gpu = |index| {
            let file = Some(fake.path(&format!("nvidia{index}")).display().to_string());
            let identity = Identity { vendor: Vendor::Nvidia, index, file, ..Identity::default() };
            GpuReport { identity, ..GpuReport::default() }
        };
        let report = Report { process, gpus: vec![gpu(0), gpu(1)], ..Report::default() };
        let container = Self { fake, agent, report };
        container.write_report();
        container
    }

    fn write_report(&self) {
        let (new, file) = (self.fake.path("run/new"), self.fake.path("run").join(FILE));
        fs::write(&new, serde_json::to_vec(&self.report).unwrap()).unwrap();
        fs::rename(new, file).unwrap();
    }

    fn start(&self, verb: &str, gpu: &str) -> Child {
        let mut command = self.fake.command(&["gpu", verb, gpu]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The numbers of the GPUs that the agent is to release.
    fn released(&self) -> Vec<u32> {
        let list = fs::read(self.fake.path("run/gpus-released.json")).unwrap();
        serde_json::from_slice::<Vec<Identity>>(&list).unwrap().into_iter().map(|gpu| gpu.index).collect()
    }

    fn fail(&self, verb: &str) -> String {
        let output = self.start(verb, "1").wait_with_output().unwrap();
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn release_waits_until_no_job_has_the_gpu() {
    let mut container = Container::new();
    let file = container.fake.path("nvidia1");
    let held = File::create(&file).unwrap();
    let name = format!("GPU 1 ({})", file.display());
    container.report.gpus[1].release = Some(Release::Pending);
    container.report.gpus[0].release = Some(Release::Done);
    container.report.node = Some("drained because of GPU 1".to_owned());
    container.write_report();
    let mut release = container.start("release", "1");
    let mut lines = BufReader::new(release.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first: Vec<String> = lines.by_ref().take(2).collect();
    assert_eq!(first, [format!("releasing {name}"), "drained because of GPU 1".to_owned()]);
    container.write_report();
    wait_for_sleep(&release);
    container.report.gpus[1].release = Some(Release::Done);
    container.write_report();
    let rest: Vec<String> = lines.collect();
    assert_eq!(rest[0], format!("{name} is released: no job uses it"));
    assert!(rest[1].starts_with("next: on the host, run `nvidia-smi --gpu-reset -i "), "{rest:?}");
    assert_eq!(rest[2], format!("then: `slurminit gpu return {}`", file.display()));
    let own = format!("warning: process {} (", std::process::id());
    let holder = rest.iter().find_map(|line| line.strip_prefix(&own)).unwrap();
    assert!(holder.ends_with(&format!(") still has {} open", file.display())), "{rest:?}");
    assert!(release.wait().unwrap().success());
    drop(held);
    assert_eq!(container.released(), [1]);
    for gpu in ["0", "1"] {
        assert!(container.start("release", gpu).wait_with_output().unwrap().status.success());
    }
    assert_eq!(container.released(), [1, 0]);
}

#[test]
fn returned_gpu_is_checked_first() {
    let mut container = Container::new();
    assert!(container.fail("return").contains("is not released"));
    let released =
        serde_json::to_vec(&[&container.report.gpus[0].identity, &container.report.gpus[1].identity]).unwrap();
    let list = container.fake.path("run/gpus-released.json");
    fs::write(&list, &released).unwrap();
    container.report.gpus[1].release = Some(Release::Returning);
    container.write_report();
    let back = container.start("return", "1");
    wait_for_sleep(&back);
    container.report.gpus[1].release = None;
    container.write_report();
    let output = back.wait_with_output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stdout).ends_with(" responds and is available to jobs again\n"),
        "{output:?}"
    );
    assert_eq!(container.released(), [0]);

    fs::write(&list, &released).unwrap();
    container.report.gpus[1].is_out = true;
    container.report.node = Some("The node waits.".to_owned());
    container.write_report();
    let output = container.start("return", "1").wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(" responds. The node waits.\n"), "{output:?}");

    fs::write(&list, &released).unwrap();
    let (kind, what) = (FaultKind::Lost, "the GPU is lost".to_owned());
    let fault = OpenFault { kind, policy: Policy::Drain, since: 0, what, fix: String::new() };
    container.report.gpus[1].faults = vec![fault];
    container.write_report();
    assert!(container.fail("return").contains("still has a fault and is not available to jobs: the GPU is lost"));

    fs::write(&list, &released).unwrap();
    container.report.gpus[1].is_out = false;
    container.write_report();
    let output = container.start("return", "1").wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let end = " is available to jobs again, but has a fault: the GPU is lost\n";
    assert!(String::from_utf8_lossy(&output.stdout).ends_with(end), "{output:?}");
    container.report.process.start_ticks += 1;
    container.write_report();
    assert!(container.fail("release").contains("slurminit agent is not running"));
}
