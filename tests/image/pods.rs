//! Tests the chart without Kubernetes: Docker runs the pod templates that Helm renders for tests/manifests/cases. A field that this translation does not support fails the test.
#![expect(clippy::panic, reason = "a test fails by panicking")]

#[path = "pods/fields.rs"]
mod fields;
#[path = "pods/names.rs"]
mod names;
#[path = "pods/pod.rs"]
mod pod;
#[path = "pods/template.rs"]
mod template;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::docker::{FULL, docker};
use pod::{Namespace, Pod};
use serde_json::{Value, json};
use template::{Probe, Template};

/// A cluster with NVIDIA GPUs. Each node has one simulated GPU.
struct Cluster {
    computes: Vec<Pod>,
    controller: Option<Pod>,
    namespace: Namespace,
    controllers: Template,
    nodes: Template,
}

impl Cluster {
    #[track_caller]
    fn new() -> Self {
        let objects = template::objects("nvidia");
        let [nodes, controllers] = <[Template; 2]>::try_from(template::templates(&objects)).expect("two StatefulSets");
        assert_eq!((controllers.name.as_str(), nodes.name.as_str()), ("slurm-controller", "slurm-compute"));
        let mut namespace = Namespace::new(&template::config(&objects, "slurm-config", "slurminit.toml"));
        // Starts all pods at once, like `kubectl apply`. The nodes start first and wait for the controller.
        let computes: Vec<Pod> = (0..nodes.replicas).map(|number| namespace.start(&nodes, number)).collect();
        let controller = namespace.start(&controllers, 0);
        let took = controller.until_ready(&controllers);
        eprintln!("the controller's pod is ready after {took:?}");
        computes.iter().for_each(|pod| eprintln!("a compute's pod is ready {:?} later", pod.until_ready(&nodes)));
        Self { computes, controller: Some(controller), namespace, controllers, nodes }
    }

    fn controller(&self) -> &Pod {
        self.controller.as_ref().expect("the controller runs")
    }

    #[track_caller]
    fn sh(&self, line: &str) -> String {
        self.controller().container.sh(line)
    }

    #[track_caller]
    fn until(&self, condition: &str) -> Duration {
        let begin = Instant::now();
        let outcome = self.controller().container.wait_until(180, condition);
        let log = || self.controller().container.log();
        assert_eq!(outcome.code, 0, "{condition}: {}\n{}\n{}", outcome.stderr, self.sh("sinfo -N -l"), log());
        begin.elapsed()
    }
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn pods_of_manifests_form_cluster() {
    let mut cluster = Cluster::new();
    let nodes = "slurm-compute-0 idle gpu:nvidia:1\nslurm-compute-1 idle gpu:nvidia:1";
    let all = "sinfo --noheader -N -o '%N %T %G' | sort";
    assert_eq!(cluster.sh(all), nodes);
    let job = "srun -N2 --gres=gpu:1 sh -c 'echo $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES:+has a GPU}' | sort";
    assert_eq!(cluster.sh(job), "slurm-compute-0 has a GPU\nslurm-compute-1 has a GPU");
    // Jobs of other users run although no process can gain privileges.
    let nobody = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    assert_eq!(cluster.sh(&format!("cd /tmp && {nobody} srun -N2 sh -c 'id -u; touch /tmp/of-a-job'")), "65534\n65534");
    let pods = cluster.computes.iter().chain([cluster.controller()]);
    pods.for_each(|pod| assert_eq!(pod.container.sh("stat -c %a /tmp /run"), "1777\n755"));
    cluster.sh("sbatch --wait --output=/dev/null --gres=gpu:1 --wrap true");
    // Kubernetes resolves a pod only as POD.SERVICE. A job resolves its nodes by their names alone.
    let first = "srun -N2 sh -c 'echo $SLURMD_NODENAME finds $(getent ahostsv4 slurm-compute-0 | head -n 1 | cut -d \" \" -f 1)' | sort";
    let found = |address: &str| format!("slurm-compute-0 finds {address}\nslurm-compute-1 finds {address}");
    assert_eq!(cluster.sh(first), found(&cluster.computes[0].address));

    // The node of a deleted pod leaves the cluster. The pod is recreated with another address.
    let (old, number) = (cluster.computes.remove(0), 0);
    let address = old.address.clone();
    let took = old.delete(&cluster.nodes);
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(cluster.sh(all), "slurm-compute-1 idle gpu:nvidia:1");
    let new = cluster.namespace.start(&cluster.nodes, number);
    new.until_ready(&cluster.nodes);
    assert_ne!(new.address, address);
    cluster.computes.insert(0, new);
    assert_eq!(cluster.sh(all), nodes);
    assert_eq!(cluster.sh(first), found(&cluster.computes[0].address));

    // A restarted container keeps the address, in-memory volumes and directories of its pod.
    cluster.computes[1].starts_again("kill");
    cluster.computes[1].until_ready(&cluster.nodes);
    cluster.controller().starts_again("stop");
    cluster.controller().until_ready(&cluster.controllers);
    cluster.until("[ \"$(sinfo -h -N -o %T | sort -u)\" = idle ]");
    assert_eq!(cluster.sh(job), "slurm-compute-0 has a GPU\nslurm-compute-1 has a GPU");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn applies_config_map_change_without_ending_jobs() {
    let cluster = Cluster::new();
    let job = cluster.sh("cd /tmp; sbatch --parsable --output=/dev/null --gres=gpu:1 --wrap 'exec sleep 1000'");
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    let start_time = cluster.sh(&format!("squeue -h -j {job} -o %S"));
    let toml = "cluster_name = \"slurm\"\n[[partition]]\nname = \"debug\"\nDefault = true\n[[partition]]\nname = \"gpus\"\nfeature = \"nvidia\"\n";
    cluster.computes.iter().for_each(|pod| pod.gets_config(&cluster.nodes, toml));
    cluster.controller().gets_config(&cluster.controllers, toml);
    cluster.until("sinfo -h -o %P | grep -q \"^gpus\"");
    cluster.until("[ \"$(sinfo -h -N -p gpus -o %N | wc -l)\" = 2 ]");
    let hash = cluster.controller().container.sh("sha256sum </etc/slurm/slurm.conf");
    for pod in &cluster.computes {
        let wait = format!(
            "timeout 120 sh -c 'until [ \"$(sha256sum </etc/slurm/slurm.conf)\" = \"{hash}\" ]; do sleep 0.1; done'"
        );
        pod.container.sh(&wait);
    }
    assert_eq!(cluster.sh(&format!("squeue -h -j {job} -t R -o %S")), start_time);
    assert_eq!(cluster.sh("srun -p gpus -N1 --gres=gpu:1 hostname | wc -l"), "1");
}

/// `helm uninstall`: all pods get SIGTERM at once, except the controller, whose preStop hook runs first.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn recreated_cluster_has_no_stale_nodes() {
    let mut cluster = Cluster::new();
    let job = cluster.sh("cd /tmp; sbatch --parsable --output=/dev/null -N2 --wrap 'exec sleep 1000'");
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    let (nodes, controllers) = (&cluster.nodes, &cluster.controllers);
    let controller = cluster.controller.take().expect("the controller runs");
    let computes = std::mem::take(&mut cluster.computes);
    let took = std::thread::scope(|scope| {
        let computes: Vec<_> = computes.into_iter().map(|pod| scope.spawn(|| pod.delete(nodes))).collect();
        let controller = scope.spawn(|| controller.delete(controllers));
        let ended: Vec<Duration> = computes.into_iter().map(|pod| pod.join().expect("the pod ended")).collect();
        (ended, controller.join().expect("the pod ended"))
    });
    eprintln!("deleted: computes and controller after {took:?}");
    cluster.controller = Some(cluster.namespace.start(&cluster.controllers, 0));
    cluster.controller().until_ready(&cluster.controllers);
    assert_eq!(cluster.sh("sinfo --noheader -N -o %N"), "");
    assert_eq!(cluster.sh(&format!("squeue -h -j {job} -o %T")), "PENDING");
}

/// Scrapes the metrics of a pod; `host` is the host name in the request.
fn metrics(address: &str, host: &str) -> String {
    let mut stream = TcpStream::connect((address, 9835)).expect("the port is open");
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}:9835\r\nConnection: close\r\n\r\n").expect("a request");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn pods_of_chart_have_users_login_metrics_and_accounting() {
    let objects = template::objects("users");
    let templates = template::templates(&objects);
    let [nodes, controllers, logins] = <[Template; 3]>::try_from(templates).expect("three StatefulSets");
    let keys = crate::login::client();
    let key = std::fs::read_to_string(keys.path().join("id.pub")).expect("ssh-keygen created the key");
    let config = template::config(&objects, "slurm-config", "slurminit.toml");
    let config = config.replace("uid = 1501", &format!("uid = 1501\nssh_keys = [\"{}\"]", key.trim()));
    let mut namespace = Namespace::new(&config);
    let [login, node, controller] =
        [&logins, &nodes, &controllers].map(|template| (namespace.start(template, 0), template));
    for (pod, template) in [&controller, &node, &login] {
        pod.until_ready(template);
        assert_eq!(
            pod.container.sh("getent passwd alice | cut -d: -f3,6; stat -c '%U %a' /etc /home/alice /etc/shadow"),
            "1501:/home/alice\nroot 755\nalice 700\nroot 640",
            "{}",
            template.name
        );
        pod.container.sh("! touch /usr/file 2>/dev/null && touch /etc/file && ! setpriv --reuid=1501 touch /etc/file");
    }
    let (login, node, controller) = (login.0, node.0, controller.0);
    let alice = "cd /tmp && setpriv --reuid=1501 --regid=1501 --clear-groups env HOME=/home/alice";
    let job = "srun sh -c 'id -un; echo $SLURMD_NODENAME $SLURM_JOB_ID; touch ~/of-the-job'";
    let output = login.container.sh(&format!("{alice} {job}"));
    let (user, id) = output.split_once("\nslurm-compute-0 ").expect("a user and a node");
    assert_eq!(user, "alice");
    assert_eq!(node.container.sh("stat -c %U /home/alice/of-the-job"), "alice");
    // slurmctld reports the end of a job to slurmdbd with a delay.
    let ended = format!("sacct --noheader --parsable2 -X -j {id} -o user,state | grep -qx \"alice.COMPLETED\"");
    assert_eq!(login.container.wait_until(60, &ended).code, 0, "{}", controller.container.log());
    // Prometheus uses addresses; other clients use the names of Services.
    for host in [controller.address.as_str(), "slurm-controller-0.slurm", "slurm-controller-0.slurm.svc.cluster.local"]
    {
        assert!(metrics(&controller.address, host).contains("\nslurminit_slurm_up 1\n"), "{host}");
    }
    assert!(metrics(&node.address, "slurm-compute.slurm.svc").contains("\nslurminit_ready 1\n"));
    assert!(metrics(&node.address, "rebound.example.org").starts_with("HTTP/1.1 421 "));

    let service = template::kind(&objects, "Service").find(|object| object["metadata"]["name"] == "slurm-login-0-ssh");
    let service = &service.expect("the pod has its own Service")["spec"];
    assert_eq!(service["selector"]["statefulset.kubernetes.io/pod-name"], "slurm-login-0");
    assert_eq!(service["ports"], json!([{"name": "ssh", "port": 22, "targetPort": "ssh"}]));
    let work = format!("{}:/work", keys.path().display());
    let ssh = |namespace: &Namespace, login: &Pod, check: &str, line: &str| {
        let client = namespace.client(FULL).with(["--entrypoint", "ssh", "--volume", &work]);
        let checking = format!("StrictHostKeyChecking={check}");
        let known = "-oUserKnownHostsFile=/work/known";
        let alias = "-oHostKeyAlias=login";
        let to = format!("alice@{}", login.address);
        client.run(&["-i", "/work/id", "-p", "2222", "-o", &checking, known, alias, &to, line]).ok()
    };
    assert_eq!(ssh(&namespace, &login, "accept-new", "srun id -un"), "alice\n");
    // A recreated pod keeps its host key.
    login.delete(&logins);
    let login = namespace.start(&logins, 0);
    login.until_ready(&logins);
    assert_eq!(ssh(&namespace, &login, "yes", "hostname"), "slurm-login-0\n");
}

/// slurmstepd itself reports the end of a job to slurmctld, and writes errors to the job's output, including errors of the resolver.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn output_of_job_that_ends_without_controller_has_no_errors() {
    let mut cluster = Cluster::new();
    let line = "until [ -e /tmp/go ]; do sleep 0.1; done; echo to stdout; echo to stderr >&2";
    let job =
        cluster.sh(&format!("cd /tmp; sbatch --parsable --output=/tmp/output -w slurm-compute-0 --wrap '{line}'"));
    cluster.until(&format!("squeue -h -j {job} -t R | grep -q ."));
    // slurmctld saves a dynamic node after up to five seconds.
    cluster.controller().container.until_saved();
    let controller = cluster.controller.take().expect("the controller runs");
    controller.delete(&cluster.controllers);
    let compute = &cluster.computes[0].container;
    compute.sh("touch /tmp/go");
    compute.until("grep -q to.stderr /tmp/output && ! pgrep -f slurm_scrip[t] && pgrep slurmstepd");
    cluster.controller = Some(cluster.namespace.start(&cluster.controllers, 0));
    cluster.controller().until_ready(&cluster.controllers);
    cluster.until(&format!("scontrol show job {job} | grep -q JobState=COMPLETED"));
    assert_eq!(cluster.computes[0].container.sh("cat /tmp/output"), "to stdout\nto stderr");
}

/// The directory of a new claim is writable only by root, which would make `sbatch` of a user fail silently.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn users_write_job_output_to_shared_storage() {
    let objects = template::objects("shared");
    let [nodes, controllers] = <[Template; 2]>::try_from(template::templates(&objects)).expect("two StatefulSets");
    let mut namespace = Namespace::new(&template::config(&objects, "slurm-config", "slurminit.toml"));
    let node = namespace.start(&nodes, 0);
    let controller = namespace.start(&controllers, 0);
    controller.until_ready(&controllers);
    node.until_ready(&nodes);
    let alice = "setpriv --reuid=1501 --regid=1501 --clear-groups env HOME=/home/alice";
    let output = controller
        .container
        .sh(&format!("{alice} sbatch --wait --quiet --output=out --wrap 'id -un' && cat /data/out"));
    assert_eq!(output, "alice");
    assert_eq!(
        node.container.sh("stat -c '%U %a' /data /data/out /home /home/alice"),
        "root 1777\nalice 644\nroot 755\nalice 700"
    );
    job_that_fills_tmp_is_cancelled(&node, &controller, alice);
    // An administrator's mode of a directory with files stays.
    controller.container.sh("chmod 0775 /data");
    let took = controller.delete(&controllers);
    assert!(took < Duration::from_secs(10), "the hook waits for nodes that stay: {took:?}");
    let controller = namespace.start(&controllers, 0);
    controller.until_ready(&controllers);
    assert_eq!(controller.container.sh("stat -c %a /data"), "775");
}

/// The chart passes the size of /tmp, 64 MiB here. Beyond it the kubelet would evict the pod with all jobs.
fn job_that_fills_tmp_is_cancelled(node: &Pod, controller: &Pod, alice: &str) {
    let fills = "until [ -e /data/go ]; do sleep 0.1; done; head -c 61M /dev/zero >/tmp/fill; exec sleep 1000";
    let submit = |user: &str, output: &str, line: &str| {
        let job =
            controller.container.sh(&format!("cd /data; {user} sbatch --parsable --output={output} --wrap '{line}'"));
        controller.container.until(&format!("squeue --noheader --jobs {job} --states=R | grep -q ."));
        job
    };
    let filling = submit(alice, "full", fills);
    let other = submit("setpriv --reuid=65534 --regid=65534 --clear-groups", "/dev/null", "exec sleep 1000");
    controller.container.sh("touch /data/go");
    controller.container.until(&format!("scontrol show job {filling} | grep -q JobState=CANCELLED"));
    let output = controller.container.sh("cat /data/full");
    assert!(
        output.contains("slurminit: cancelled, because the node's directory /tmp is nearly full: 3 of 64 MiB free"),
        "{output}"
    );
    let state = |state: &str| format!("sinfo --noheader --format \"%T %E\" | grep -q \"^{state}\"");
    controller.container.until(&state("draining slurminit: directory /tmp is nearly full"));
    assert_eq!(controller.container.sh(&format!("squeue --noheader --jobs {other} --format %T")), "RUNNING");
    // A pod that is not ready may be evicted, with its jobs.
    node.container.sh("slurminit health --allow-draining && ! slurminit health");
    controller.container.sh(&format!("scancel {other}"));
    controller.container.until(&state("drained"));
    node.container.sh("! slurminit health --allow-draining && rm /tmp/fill");
    controller.container.until(&state("idle"));
}

/// A job whose OpenMP counts the machine's CPUs starts hundreds of threads in a pod with one CPU. The kubelet runs each probe in the pod, where
/// the probe then gets a 400th of the CPU time. The test runs alone (.config/nextest.toml), because other tests would take CPU time, too.
#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn probes_succeed_in_pod_with_400_busy_processes() {
    const PROBING: Duration = Duration::from_secs(20);
    let objects = template::objects("shared");
    let [nodes, controllers] = <[Template; 2]>::try_from(template::templates(&objects)).expect("two StatefulSets");
    let mut namespace = Namespace::new(&template::config(&objects, "slurm-config", "slurminit.toml"));
    let node = namespace.start(&nodes, 0);
    let controller = namespace.start(&controllers, 0);
    controller.until_ready(&controllers);
    node.until_ready(&nodes);
    docker(["update", "--cpu-quota=100000", &node.container.name]).ok();
    // No process begins before all are started: each waits for a line in the pipe.
    let processes = "mkfifo /tmp/go; exec 3<>/tmp/go; \
        for i in $(seq 400); do sh -c \"read x; while :; do :; done\" </tmp/go 3>&- & done; seq 400 >&3; touch /data/busy; sleep 50";
    let job =
        controller.container.sh(&format!("cd /data && sbatch --parsable --output=/dev/null --wrap '{processes}'"));
    controller.container.until("[ -e /data/busy ]");
    let begin = Instant::now();
    // The kubelet has one worker for each kind of probe.
    let longest = |probe: &Probe| {
        let mut longest = Duration::ZERO;
        while begin.elapsed() < PROBING {
            let start = Instant::now();
            let outcome = node.probe(probe);
            assert_eq!(outcome.code, 0, "{:?} after {:?}: {outcome:?}", probe.command, start.elapsed());
            longest = longest.max(start.elapsed());
        }
        longest
    };
    let took = std::thread::scope(|scope| {
        [&nodes.live, &nodes.ready]
            .map(|probe| scope.spawn(|| longest(probe)))
            .map(|thread| thread.join().expect("it ends"))
    });
    let is_busy = controller.container.sh(&format!("squeue --noheader --jobs {job} --format %T || true"));
    eprintln!("liveness and readiness took at most {took:?}, ending after {:?}; the job: {is_busy}", begin.elapsed());
    assert!(took.iter().all(|took| *took > Duration::from_secs(1)), "the processes were not busy: {took:?}");
}

#[test]
#[ignore = "needs Docker and the images: run docker/test"]
fn manifests_use_only_known_fields() {
    let objects = template::objects("nvidia");
    let templates = template::templates(&objects);
    assert_eq!(templates.iter().map(|template| template.gpus).collect::<Vec<u64>>(), [1, 0]);
    for template in templates {
        let options = template.options.join(" ");
        assert!(options.contains("--read-only") && options.contains("--cap-drop=ALL"), "{options}");
        assert_eq!(options.matches("--cap-add=").count(), 5, "{options}");
        assert!(!options.contains("unconfined"), "{options}");
    }
    let pods: Vec<&Value> = template::kind(&objects, "StatefulSet").map(|set| &set["spec"]["template"]).collect();
    for policy in template::kind(&objects, "NetworkPolicy") {
        let selector = &policy["spec"]["podSelector"];
        assert_eq!(
            policy["spec"]["ingress"],
            json!([{"from": [{"podSelector": selector}]}]),
            "only its own pods can connect to its pods"
        );
        let labels = selector["matchLabels"].as_object().expect("labels");
        assert!(pods.iter().all(|pod| labels.iter().all(|(name, value)| pod["metadata"]["labels"][name] == *value)));
    }
    let spec = "/spec/template/spec";
    for (place, field, value) in [
        (spec.to_owned(), "hostNetwork", json!(true)),
        (format!("{spec}/containers/0"), "stdin", json!(true)),
        (format!("{spec}/containers/0/securityContext"), "privileged", json!(true)),
        (format!("{spec}/volumes/0"), "hostPath", json!({"path": "/"})),
        ("/spec".to_owned(), "minReadySeconds", json!(5)),
    ] {
        let mut objects = template::objects("nvidia");
        let set = objects.iter_mut().find(|object| object["kind"] == "StatefulSet").expect("a StatefulSet");
        set.pointer_mut(&place).and_then(Value::as_object_mut).expect("a mapping").insert(field.to_owned(), value);
        let outcome = std::panic::catch_unwind(|| template::templates(&objects));
        assert!(outcome.is_err(), "{place}/{field} was ignored");
    }
}
