{{- /*
The pods of all roles. Only this file defines what a pod may do: five capabilities, no more privileges, a read-only root, no token.
Each template takes a dict: `top` (the root context), `role` (controller, compute or login), `component` (the name after the
release's), `of` (the values of this kind of pods).
*/ -}}

{{- /* The labels that select pods: of one component, or without `component` of all. */ -}}
{{- define "slurminit.labels" -}}
app.kubernetes.io/name: slurminit
app.kubernetes.io/instance: {{ .top.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{- /* The labels of an object. Selectors must not have these: they cannot change. */ -}}
{{- define "slurminit.objectLabels" -}}
{{ include "slurminit.labels" . }}
app.kubernetes.io/version: {{ .top.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: slurminit
app.kubernetes.io/managed-by: {{ .top.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .top.Chart.Name .top.Chart.Version | replace "+" "_" }}
{{- with .top.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /*
The prefix of all names. The controller's name is a host name, which jobs and slurm.conf contain without a domain. Names of pods are labels of
at most 63 characters: with a longer name an install would fail half-way.
*/ -}}
{{- define "slurminit.fullname" -}}
{{- $name := .Values.nameOverride | default .Release.Name -}}
{{- if contains "." $name }}
{{- fail (printf "the name %s has a dot, and Slurm takes the part before it for a host's name: choose another name of the release, or set nameOverride" $name) }}
{{- end }}
{{- if gt (len $name) 40 }}
{{- fail (printf "the name %s has more than 40 characters, and names of pods at most 63: choose another name of the release, or set nameOverride" $name) }}
{{- end }}
{{- $name }}
{{- end }}

{{- /* Converts a quantity to MiB. */ -}}
{{- define "slurminit.mib" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 -}}
{{- $number := regexFind "^[0-9]+" . -}}
{{- div (mul (int64 $number) (int64 (get $units (trimPrefix $number .)))) 1048576 -}}
{{- end }}

{{- define "slurminit.tag" -}}
{{- $gpu := .top.Values.compute.gpu.type -}}
{{- if eq .role "compute" }}{{ $gpu = .of.gpu.type }}{{ end -}}
{{- $words := list .top.Values.image.tag -}}
{{- if not .top.Values.image.tag }}{{ $words = list .top.Values.image.version (eq $gpu "none" | ternary "" $gpu) }}{{ end -}}
{{- if or (include "slurminit.hasSsh" .) (and (eq .role "controller") (or .top.Values.rest.enabled (ne .top.Values.accounting.mode "none"))) -}}
{{- $words = append $words "full" -}}
{{- end -}}
{{- .of.tag | default (compact $words | join "-") | default "latest" -}}
{{- end }}

{{- define "slurminit.hasSsh" -}}
{{- if and (eq .role "login") .top.Values.login.ssh.enabled (not .isTest) }}yes{{ end -}}
{{- end }}

{{- define "slurminit.config" -}}
{{- .Values.config | trimSuffix "\n" }}
{{- range $table, $enabled := dict "metrics" .Values.metrics.enabled "rest" .Values.rest.enabled }}
{{- if and $enabled (regexMatch (printf `(?m)^\s*\[%s\]` $table) $.Values.config) }}
{{- fail (printf "config has a table [%s], and %s.enabled adds one: remove one of them" $table $table) }}
{{- end }}
{{- end }}
{{- if .Values.metrics.enabled }}
{{- $services := list (printf "%s-controller-0" (include "slurminit.fullname" .)) }}
{{- range $kind := prepend (keys .Values.moreComputes | sortAlpha) "compute" }}
{{- $services = append $services (printf "%s-%s" (include "slurminit.fullname" $) $kind) }}
{{- end }}
{{- $hosts := .Values.metrics.hosts }}
{{- range $services }}
{{- $name := printf "%s.%s" . $.Release.Namespace }}
{{- $hosts = concat $hosts (list $name (printf "%s.svc" $name) (printf "%s.svc.cluster.local" $name)) }}
{{- end }}

[metrics]
listen = "0.0.0.0:{{ .Values.metrics.port }}"
# The names of the Services, which the clients may request.
hosts = {{ uniq $hosts | toJson }}
{{- end }}
{{- if .Values.rest.enabled }}

[rest]
listen = "0.0.0.0:{{ .Values.rest.port }}"
{{- end }}
{{ end }}

{{- /* Whether slurminit creates accounts, which needs an /etc that can be written. */ -}}
{{- define "slurminit.hasAccounts" -}}
{{- if regexMatch `(?m)^\s*\[\[(user|group)\]\]` .Values.config }}yes{{ end -}}
{{- end }}

{{- define "slurminit.emptyDir" -}}
- name: {{ .name }}
  {{- if .size }}
  emptyDir:
    {{- if .memory }}
    medium: Memory
    {{- end }}
    sizeLimit: {{ .size }}
  {{- else }}
  emptyDir: {}
  {{- end }}
{{- end }}

{{- /* The directories for files of jobs that belong to the pod. */ -}}
{{- define "slurminit.scratchDirectories" -}}
{{- $directories := list "tmp" -}}
{{- if not .top.Values.sharedStorage.enabled }}
{{- $directories = append $directories "data" -}}
{{- if include "slurminit.hasAccounts" .top }}{{ $directories = append $directories "home" }}{{ end -}}
{{- end }}
{{- toJson $directories -}}
{{- end }}

{{- /* A directory for files of jobs: `name`, its key in `of`. */ -}}
{{- define "slurminit.scratch" -}}
{{- $size := get .of .name -}}
{{- $claims := .of.claims | default (dict "enabled" false) -}}
{{- if $claims.enabled -}}
- name: {{ .name }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        {{- if kindIs "string" $claims.storageClass }}
        storageClassName: {{ $claims.storageClass | quote }}
        {{- end }}
        resources:
          requests:
            storage: {{ required (printf "%s has no size, which claims.enabled needs" .name) $size }}
{{- else -}}
{{ include "slurminit.emptyDir" (dict "name" .name "size" $size) }}
{{- end -}}
{{- end }}

{{- define "slurminit.pod" -}}
{{- $values := .top.Values -}}
{{- $hasAccounts := include "slurminit.hasAccounts" .top -}}
{{- $image := printf "%s:%s" $values.image.repository (include "slurminit.tag" .) -}}
{{- $gpu := "none" -}}
{{- if eq .role "compute" }}{{ $gpu = .of.gpu.type }}{{ end -}}
metadata:
  labels:
    {{- include "slurminit.labels" . | nindent 4 }}
    {{- with .of.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .of.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  # No pod uses the Kubernetes API.
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- with $values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .of.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .of.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with .of.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .of.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .of.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or (ne $gpu "none") .of.tolerations }}
  tolerations:
    {{- if ne $gpu "none" }}
    - key: {{ include "slurminit.gpuResource" . }}
      operator: Exists
      effect: NoSchedule
    {{- end }}
    {{- with .of.tolerations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  securityContext:
    seccompProfile:
      type: RuntimeDefault
    {{- if has $gpu (list "amd" "intel") }}
    # The groups that own /dev/kfd and /dev/dri/renderD* on the machines.
    supplementalGroups: {{ .of.supplementalGroups | default (list 44 105) | toJson }}
    {{- end }}
  {{- if or $hasAccounts $values.sharedStorage.enabled .of.initContainers }}
  initContainers:
    {{- if $hasAccounts }}
    # The root is read-only: [[user]] needs a copy of the image's /etc in memory. Directories mounted below /etc are not copied.
    - name: etc
      {{- include "slurminit.initContainer" (dict "image" $image "top" .top "capabilities" (list "CHOWN")) | nindent 6 }}
      command: [sh, -ec, "tar -C /etc --one-file-system --exclude=./munge --exclude=./slurm -c . | tar -C /new -x --same-owner"]
      volumeMounts:
        - name: etc
          mountPath: /new
    {{- end }}
    {{- if $values.sharedStorage.enabled }}
    # The directory of a new claim is writable by root only, and jobs write their output into it. A directory that contains files
    # keeps its mode, so the first pod changes it before slurminit makes /data/images.
    - name: data
      {{- include "slurminit.initContainer" (dict "image" $image "top" .top "capabilities" list) | nindent 6 }}
      command: [sh, -ec, "[ -n \"$(ls -A /data)\" ] || chmod 1777 /data || echo 'users cannot write to /data: give them access on the file server' >&2"]
      volumeMounts:
        - name: shared
          mountPath: /data
          subPath: data
    {{- end }}
    {{- with .of.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    - name: slurminit
      image: {{ $image }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      workingDir: /data
      env:
        - name: SLURMINIT_ROLE
          value: {{ .role }}
        - name: SLURMINIT_CONTROLLER
          value: {{ include "slurminit.fullname" .top }}-controller-0
        {{- /* An image of the target full has accounting by default. */}}
        {{- if or (ne $values.accounting.mode "none") (include "slurminit.hasSsh" .) (and (eq .role "controller") $values.rest.enabled) }}
        - name: SLURMINIT_ACCOUNTING
          value: {{ $values.accounting.mode }}
        {{- end }}
        {{- if and (eq .role "compute") (not .of.claims.enabled) }}
        # Parts of the machine's disk. A pod that exceeds a size is evicted, so slurminit cancels the job that fills a directory.
        {{- with .of.tmp }}
        - name: SLURMINIT_TMP_DISK_MIB
          value: {{ include "slurminit.mib" . | quote }}
        {{- end }}
        {{- $limits := list }}
        {{- range $directory := include "slurminit.scratchDirectories" . | fromJsonArray }}
        {{- with get $.of $directory }}
        {{- $limits = append $limits (printf "/%s=%s" $directory (include "slurminit.mib" .)) }}
        {{- end }}
        {{- end }}
        {{- with $limits }}
        - name: SLURMINIT_DIRECTORY_LIMITS
          value: {{ join "," . }}
        {{- end }}
        {{- end }}
        {{- if ne .role "compute" }}
        # Where NVIDIA's runtime is the default, a pod that asks for no GPU would get all of them: the image says "all".
        - name: NVIDIA_VISIBLE_DEVICES
          value: void
        {{- end }}
        {{- if include "slurminit.hasSsh" . }}
        # Not every runtime lets a container without NET_BIND_SERVICE bind a port below 1024.
        - name: SLURMINIT_LOGIN_PORT
          value: "2222"
        {{- end }}
        {{- with .of.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .of.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- $ports := include "slurminit.ports" . | fromYamlArray }}
      {{- with $ports }}
      ports:
        {{- range . }}
        - name: {{ .name }}
          containerPort: {{ .port }}
        {{- end }}
      {{- end }}
      # Succeeds as soon as PID 1 answers: a compute waits for its controller without a timeout.
      startupProbe:
        exec:
          command: [slurminit, health, --live]
        {{- toYaml $values.probes.startup | nindent 8 }}
      # A node that is down, or drained and without jobs, is not ready, but is not restarted.
      readinessProbe:
        exec:
          command: [slurminit, health, --allow-draining, --wait, "30"]
        {{- toYaml $values.probes.readiness | nindent 8 }}
      livenessProbe:
        exec:
          command: [slurminit, health, --live]
        {{- toYaml $values.probes.liveness | nindent 8 }}
      {{- if eq .role "controller" }}
      lifecycle:
        preStop:
          # When the whole cluster is deleted, the computes deregister from the controller, within about 4 s each. When only this pod is
          # replaced, nothing changes.
          exec:
            command:
              - sh
              - -c
              - |
                timeout 15 sh -c '
                    same=0 before=
                    while nodes=$(sinfo --noheader --Node --format "%N %T") && [ -n "$nodes" ] && [ "$same" -lt 8 ]; do
                        if [ "$nodes" = "$before" ]; then same=$((same + 1)); else same=0; fi
                        before=$nodes
                        sleep 0.5
                    done' || true
      {{- end }}
      securityContext:
        # Slurm starts jobs as their users, so slurminit starts as root. It needs only these five capabilities (docs/security.md).
        runAsUser: 0
        runAsGroup: 0
        privileged: false
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          {{- $capabilities := list "CHOWN" "DAC_OVERRIDE" "KILL" "SETGID" "SETUID" }}
          {{- if include "slurminit.hasSsh" . }}
          # sshd chroots its unprivileged process into an empty directory.
          {{- $capabilities = append $capabilities "SYS_CHROOT" }}
          {{- end }}
          add: [{{ concat $capabilities (.of.capabilities | default list) | uniq | join ", " }}]
        {{- if eq $gpu "amd" }}
        # ROCm sets memory policies (set_mempolicy, mbind), which the runtime's profile refuses.
        seccompProfile:
          type: Unconfined
        {{- end }}
      resources:
        {{- if eq .role "compute" }}
        {{- $cpu := .of.cpu | default (eq $gpu "none" | ternary 2 8) | toString }}
        {{- $memory := .of.memory | default (eq $gpu "none" | ternary "4Gi" "32Gi") }}
        # The node's resources. Without limits, each pod on a machine would offer the whole machine.
        requests:
          cpu: {{ $cpu | quote }}
          memory: {{ $memory }}
          {{- with .of.resources }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        limits:
          cpu: {{ $cpu | quote }}
          memory: {{ $memory }}
          {{- if ne $gpu "none" }}
          {{ .of.gpu.resource | default (include "slurminit.gpuResource" .) }}: {{ .of.gpu.count }}
          {{- end }}
          {{- with .of.resources }}
          {{- toYaml . | nindent 10 }}
          {{- end }}
        {{- else }}
        {{- toYaml .of.resources | nindent 8 }}
        {{- end }}
      volumeMounts:
        {{- if $hasAccounts }}
        - name: etc
          mountPath: /etc
        {{- end }}
        - name: state
          mountPath: /var/lib/slurm
        - name: etc-slurm
          mountPath: /etc/slurm
        - name: etc-munge
          mountPath: /etc/munge
        - name: run
          mountPath: /run
        - name: secrets
          mountPath: /run/secrets
          readOnly: true
        {{- if $values.webhookSecret }}
        - name: webhooks
          mountPath: /run/webhooks
          readOnly: true
        {{- end }}
        - name: config
          mountPath: /config
          readOnly: true
        - name: tmp
          mountPath: /tmp
        {{- if $values.sharedStorage.enabled }}
        - name: shared
          mountPath: /data
          subPath: data
        - name: shared
          mountPath: /home
          subPath: home
        {{- else }}
        - name: data
          mountPath: /data
        {{- if $hasAccounts }}
        - name: home
          mountPath: /home
        {{- end }}
        {{- end }}
        {{- if eq .role "compute" }}
        - name: shm
          mountPath: /dev/shm
        {{- end }}
        {{- with .of.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    {{- with .of.sidecars }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  volumes:
    {{- if $hasAccounts }}
    {{- include "slurminit.emptyDir" (dict "name" "etc" "memory" true "size" "16Mi") | nindent 4 }}
    {{- end }}
    {{- if or (eq .role "compute") .isTest }}
    # A replaced pod does not need its former content.
    {{- include "slurminit.emptyDir" (dict "name" "state" "size" (kindIs "string" .of.state | ternary .of.state "64Mi")) | nindent 4 }}
    {{- end }}
    {{- include "slurminit.emptyDir" (dict "name" "etc-slurm" "memory" true "size" "4Mi") | nindent 4 }}
    {{- include "slurminit.emptyDir" (dict "name" "etc-munge" "memory" true "size" "1Mi") | nindent 4 }}
    {{- include "slurminit.emptyDir" (dict "name" "run" "memory" true "size" "32Mi") | nindent 4 }}
    - name: secrets
      secret:
        secretName: {{ include "slurminit.mungeKeySecret" .top }}
        # 0400, for parsers of YAML 1.1 and 1.2.
        defaultMode: 256
        # The controller's database password stays out of the other pods.
        items:
          - key: munge.key
            path: munge.key
          {{- if and (eq .role "controller") (eq $values.accounting.mode "external") }}
          - key: accounting_password
            path: accounting_password
          {{- end }}
    {{- with $values.webhookSecret }}
    - name: webhooks
      secret:
        secretName: {{ . }}
        defaultMode: 256
    {{- end }}
    - name: config
      configMap:
        name: {{ include "slurminit.fullname" .top }}-config
    # Belongs to this pod and is removed with it.
    {{- range include "slurminit.scratchDirectories" . | fromJsonArray }}
    {{- include "slurminit.scratch" (dict "name" . "of" $.of) | nindent 4 }}
    {{- end }}
    {{- if $values.sharedStorage.enabled }}
    - name: shared
      persistentVolumeClaim:
        claimName: {{ $values.sharedStorage.existingClaim | default (printf "%s-shared" (include "slurminit.fullname" .top)) }}
    {{- end }}
    {{- if eq .role "compute" }}
    # Files in it count towards the pod's memory limit.
    {{- include "slurminit.emptyDir" (dict "name" "shm" "memory" true "size" (.of.shm | default (eq $gpu "none" | ternary "1Gi" "8Gi"))) | nindent 4 }}
    {{- end }}
    {{- with .of.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "slurminit.initContainer" -}}
image: {{ .image }}
imagePullPolicy: {{ .top.Values.image.pullPolicy }}
securityContext:
  runAsUser: 0
  runAsGroup: 0
  privileged: false
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    {{- with .capabilities }}
    add: {{ toJson . }}
    {{- end }}
resources:
  requests: {cpu: 100m, memory: 64Mi}
  limits: {cpu: 100m, memory: 64Mi}
{{- end }}

{{- /* The resource of the vendor's device plugin. */ -}}
{{- define "slurminit.gpuResource" -}}
{{- get (dict "nvidia" "nvidia.com/gpu" "amd" "amd.com/gpu" "intel" "gpu.intel.com/xe") .of.gpu.type -}}
{{- end }}

{{- define "slurminit.mungeKeySecret" -}}
{{- .Values.mungeKeySecret | default (printf "%s-munge-key" (include "slurminit.fullname" .)) -}}
{{- end }}

{{- /* The ports of a pod: a list of name and port. */ -}}
{{- define "slurminit.ports" -}}
{{- $ports := list -}}
{{- if eq .role "controller" -}}
{{- $ports = append $ports (dict "name" "slurmctld" "port" 6817) -}}
{{- if ne .top.Values.accounting.mode "none" }}{{ $ports = append $ports (dict "name" "slurmdbd" "port" 6819) }}{{ end -}}
{{- if .top.Values.rest.enabled }}{{ $ports = append $ports (dict "name" "rest" "port" (int .top.Values.rest.port)) }}{{ end -}}
{{- else if eq .role "compute" -}}
{{- $ports = append $ports (dict "name" "slurmd" "port" 6818) -}}
{{- end -}}
{{- if include "slurminit.hasSsh" . }}{{ $ports = append $ports (dict "name" "ssh" "port" 2222) }}{{ end -}}
{{- if and .top.Values.metrics.enabled (ne .role "login") }}{{ $ports = append $ports (dict "name" "metrics" "port" (int .top.Values.metrics.port)) }}{{ end -}}
{{- toYaml $ports -}}
{{- end }}

{{- /* The Service of a StatefulSet: each pod has its name in DNS before it is ready. Takes `name`, too. */ -}}
{{- define "slurminit.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels:
    {{- include "slurminit.objectLabels" . | nindent 4 }}
spec:
  {{- if eq .role "controller" }}
  # A cluster IP lets the name resolve while there is no pod. Without it, a job that ends meanwhile has the resolver's errors in its output.
  type: ClusterIP
  {{- else }}
  clusterIP: None
  {{- end }}
  publishNotReadyAddresses: true
  selector:
    {{- include "slurminit.labels" . | nindent 4 }}
  {{- with include "slurminit.ports" . | fromYamlArray }}
  ports:
    {{- range . }}
    - name: {{ .name }}
      port: {{ .port }}
    {{- end }}
  {{- end }}
{{- end }}

{{- /* The claim of each pod for /var/lib/slurm. Takes `state`: size and storageClass. */ -}}
{{- define "slurminit.stateClaim" -}}
- metadata:
    name: state
  spec:
    accessModes: [ReadWriteOnce]
    {{- if kindIs "string" .storageClass }}
    storageClassName: {{ .storageClass | quote }}
    {{- end }}
    resources:
      requests:
        storage: {{ .size }}
{{- end }}

{{- define "slurminit.podDisruptionBudget" -}}
{{- if .of.podDisruptionBudget -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "slurminit.fullname" .top }}-{{ .component }}
  labels:
    {{- include "slurminit.objectLabels" . | nindent 4 }}
spec:
  {{- toYaml .of.podDisruptionBudget | nindent 2 }}
  selector:
    matchLabels:
      {{- include "slurminit.labels" . | nindent 6 }}
{{- end }}
{{- end }}
