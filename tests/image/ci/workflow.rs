//! A workflow job, run as GitHub's runner does: a network per job, services through `docker create`, the job container
//! with `tail` as the entry point, and a `docker exec` of a script for each step.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use yaml_rust2::{Yaml, YamlLoader};

use crate::docker::{Container, FULL, Network, Outcome, PLAIN, docker, tag, unique};

/// The value of `${{ secrets.SLURM_KEY }}`.
pub(crate) const KEY: &str = "c2VjcmV0LW9mLXRoZS1yZXBvc2l0b3J5LWxvbmctZW5vdWdo";

/// The block of docs/ci.md with this file name.
pub(crate) fn documented_workflow(name: &str) -> String {
    let page = fs::read_to_string(harness::root().join("docs/ci.md")).expect("docs/ci.md exists");
    let marker = format!("<!-- test: file={name} -->\n```");
    let (_, rest) = page.split_once(&marker).unwrap_or_else(|| panic!("docs/ci.md has no block {name}"));
    let (_, block) = rest.split_once('\n').expect("a block has lines");
    block.split_once("\n```").expect("a block ends").0.to_owned()
}

pub(crate) struct Job {
    pub(crate) steps: Vec<Yaml>,
    pub(crate) container: Container,
    pub(crate) services: Vec<Container>,
    _network: Network,
    work: TempDir,
}

impl Job {
    /// Starts the containers of the workflow's job and waits until the services are healthy.
    #[track_caller]
    pub(crate) fn start(workflow: &str) -> Self {
        let work = TempDir::with_prefix("slurminit-test-").expect("a temporary directory");
        fs::create_dir_all(work.path().join("repo/repo")).expect("a workspace");
        fs::create_dir_all(work.path().join("_temp")).expect("a directory for scripts");
        let text = workflow
            .replace("${{ secrets.SLURM_KEY }}", KEY)
            .replace("slurminit:full", &tag(FULL))
            .replace("slurminit:latest", &tag(PLAIN))
            .replace("/home/runner/work", &work.path().display().to_string());
        let workflow = YamlLoader::load_from_str(&text).expect("a workflow is YAML").remove(0);
        let job = workflow["jobs"]["test"].clone();
        let network = Network::new();
        let services = job["services"].as_hash().into_iter().flatten();
        let services: Vec<Container> = services
            .map(|(name, service)| {
                let alias = name.as_str().expect("a service has a name");
                create(service, &["--network", &network.0, "--network-alias", alias], &[])
            })
            .collect();
        let mount = format!("{}:/__w", work.path().display());
        let fixed =
            ["--workdir", "/__w/repo/repo", "--network", &network.0, "--volume", &mount, "--entrypoint", "tail"];
        let container = create(&job["container"], &fixed, &["-f", "/dev/null"]);
        let job = Self {
            steps: job["steps"].as_vec().expect("a job has steps").clone(),
            container,
            services,
            _network: network,
            work,
        };
        job.services.iter().for_each(wait_for_health);
        job
    }

    /// Runs a script as a step.
    pub(crate) fn run(&self, script: &str, env: &[(String, String)]) -> Outcome {
        let name = unique("step");
        fs::write(self.work.path().join("_temp").join(&name), script).expect("a script");
        let mut arguments: Vec<String> =
            ["exec", "--interactive", "--workdir", "/__w/repo/repo"].map(str::to_owned).into();
        let fixed = [("HOME", "/github/home"), ("CI", "true"), ("GITHUB_ACTIONS", "true")];
        let fixed = fixed.map(|(name, value)| (name.to_owned(), value.to_owned()));
        for (name, value) in fixed.iter().chain(env) {
            arguments.extend(["--env".to_owned(), format!("{name}={value}")]);
        }
        arguments.extend([self.container.name.clone(), "sh".into(), "-e".into(), format!("/__w/_temp/{name}")]);
        let output = Command::new("timeout")
            .args(["--kill-after=1", "120", "docker"])
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .expect("docker is installed");
        Outcome::of(&output)
    }

    /// Runs all script steps in order and returns the output of each.
    #[track_caller]
    pub(crate) fn run_all(&self) -> Vec<String> {
        let scripts = self.steps.iter().filter_map(|step| Some((step["run"].as_str()?, pairs(&step["env"]))));
        let outcomes = scripts.map(|(script, env)| {
            let outcome = self.run(script, &env);
            assert_eq!(outcome.code, 0, "{script}: {outcome:?}");
            outcome.stdout
        });
        outcomes.collect()
    }
}

fn pairs(env: &Yaml) -> Vec<(String, String)> {
    let pair = |(name, value): (&Yaml, &Yaml)| {
        (name.as_str().unwrap_or_default().to_owned(), value.as_str().unwrap_or_default().to_owned())
    };
    env.as_hash().into_iter().flatten().map(pair).collect()
}

/// Creates and starts a container. The workflow's options follow the runner's.
#[track_caller]
fn create(spec: &Yaml, fixed: &[&str], command: &[&str]) -> Container {
    let container = Container { name: unique("job") };
    let image = spec.as_str().or_else(|| spec["image"].as_str()).expect("a container has an image");
    let mut arguments: Vec<String> = vec!["create".into(), "--name".into(), container.name.clone()];
    arguments.extend(fixed.iter().map(|word| (*word).to_owned()));
    arguments.extend(spec["options"].as_str().unwrap_or_default().split_whitespace().map(str::to_owned));
    for (name, value) in pairs(&spec["env"]) {
        arguments.extend(["--env".to_owned(), format!("{name}={value}")]);
    }
    for volume in spec["volumes"].as_vec().into_iter().flatten() {
        arguments.extend(["--volume".to_owned(), volume.as_str().unwrap_or_default().to_owned()]);
    }
    arguments.extend(["--env", "GITHUB_ACTIONS=true", "--env", "CI=true"].map(str::to_owned));
    arguments.push(image.to_owned());
    arguments.extend(command.iter().map(|word| (*word).to_owned()));
    docker(arguments).ok();
    docker(["start", &container.name]).ok();
    container
}

#[track_caller]
fn wait_for_health(container: &Container) {
    let begin = Instant::now();
    while docker(["inspect", "--format", "{{.State.Health.Status}}", &container.name]).ok().trim() != "healthy" {
        assert!(begin.elapsed() < Duration::from_secs(180), "not healthy: {}", container.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}
