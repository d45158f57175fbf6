{{- /*
The pods of all roles. What a pod may do is here alone: five capabilities, no more privileges, a read-only root, no token.
Each template takes a dict: `top` (the root context), `role` (controller, compute or login), `component` (the name after the
release's), `of` (the values of this kind of pods).
*/ -}}

{{- define "slurminit.labels" -}}
app.kubernetes.io/name: slurminit
app.kubernetes.io/instance: {{ .top.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "slurminit.tag" -}}
{{- $gpu := .top.Values.compute.gpu.type -}}
{{- if eq .role "compute" }}{{ $gpu = .of.gpu.type }}{{ end -}}
{{- $words := list .top.Values.image.tag -}}
{{- if not .top.Values.image.tag }}{{ $words = list .top.Values.image.version (eq $gpu "none" | ternary "" $gpu) }}{{ end -}}
{{- if or (include "slurminit.hasSsh" .) (and (eq .role "controller") (ne .top.Values.accounting.mode "none")) -}}
{{- $words = append $words "full" -}}
{{- end -}}
{{- .of.tag | default (compact $words | join "-") | default "latest" -}}
{{- end }}

{{- define "slurminit.hasSsh" -}}
{{- if and (eq .role "login") .top.Values.login.ssh.enabled }}yes{{ end -}}
{{- end }}

{{- define "slurminit.config" -}}
{{- .Values.config | trimSuffix "\n" }}
{{- if .Values.metrics.enabled }}
{{- if regexMatch `(?m)^\s*\[metrics\]` .Values.config }}
{{- fail "config has a table [metrics], and metrics.enabled adds one: remove one of them" }}
{{- end }}

[metrics]
listen = "0.0.0.0:{{ .Values.metrics.port }}"
{{- end }}
{{ end }}

{{- /* Whether slurminit creates accounts, which needs an /etc that can be written. */ -}}
{{- define "slurminit.hasAccounts" -}}
{{- if regexMatch `(?m)^\s*\[\[(user|group)\]\]` .Values.config }}yes{{ end -}}
{{- end }}

{{- define "slurminit.emptyDir" -}}
- name: {{ .name }}
  emptyDir:
    {{- if .memory }}
    medium: Memory
    {{- end }}
    sizeLimit: {{ .size }}
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
  {{- if or (ne $gpu "none") .of.tolerations }}
  tolerations:
    {{- if ne $gpu "none" }}
    - key: {{ $gpu }}.com/gpu
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
    {{- if eq $gpu "amd" }}
    # The groups that own /dev/kfd and /dev/dri/renderD* on the machines.
    supplementalGroups: {{ .of.supplementalGroups | default (list 44 105) | toJson }}
    {{- end }}
  {{- if $hasAccounts }}
  initContainers:
    # The root is read-only: [[user]] needs a copy of the image's /etc in memory. Directories that are mounted there are left out.
    - name: etc
      image: {{ $image }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: [sh, -ec, "tar -C /etc --one-file-system --exclude=./munge --exclude=./slurm -c . | tar -C /new -x --same-owner"]
      securityContext:
        runAsUser: 0
        runAsGroup: 0
        privileged: false
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          add: [CHOWN]
      resources:
        requests: {cpu: 100m, memory: 64Mi}
        limits: {cpu: 100m, memory: 64Mi}
      volumeMounts:
        - name: etc
          mountPath: /new
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
          value: {{ .top.Release.Name }}-controller-0
        {{- /* Of the target full, an image has accounting by default. */}}
        {{- if or (ne $values.accounting.mode "none") (include "slurminit.hasSsh" .) }}
        - name: SLURMINIT_ACCOUNTING
          value: {{ $values.accounting.mode }}
        {{- end }}
        {{- if ne .role "compute" }}
        # Where NVIDIA's runtime is the default, a pod that asks for no GPU would get all of them: the image says "all".
        - name: NVIDIA_VISIBLE_DEVICES
          value: void
        {{- end }}
        {{- if include "slurminit.hasSsh" . }}
        # Not every runtime lets a container without NET_BIND_SERVICE have a port below 1024.
        - name: SLURMINIT_LOGIN_PORT
          value: "2222"
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
      # A node that is drained or down is not ready, but is not restarted.
      readinessProbe:
        exec:
          command: [slurminit, health, --wait, "8"]
        {{- toYaml $values.probes.readiness | nindent 8 }}
      livenessProbe:
        exec:
          command: [slurminit, health, --live]
        {{- toYaml $values.probes.liveness | nindent 8 }}
      {{- if eq .role "controller" }}
      lifecycle:
        preStop:
          # When the whole cluster is deleted, the computes deregister from the controller, within about 4 s each.
          exec:
            command: [sh, -c, "timeout 15 sh -c 'while sinfo --noheader --Node | grep -q .; do sleep 0.5; done' || true"]
      {{- end }}
      securityContext:
        # Slurm starts jobs as their users, so it begins as root; these five are all that it takes (docs/security.md).
        runAsUser: 0
        runAsGroup: 0
        privileged: false
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities:
          drop: [ALL]
          {{- if include "slurminit.hasSsh" . }}
          # sshd's unprivileged part has an empty root.
          add: [CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID, SYS_CHROOT]
          {{- else }}
          add: [CHOWN, DAC_OVERRIDE, KILL, SETGID, SETUID]
          {{- end }}
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
        limits:
          cpu: {{ $cpu | quote }}
          memory: {{ $memory }}
          {{- if ne $gpu "none" }}
          {{ .of.gpu.resource | default (printf "%s.com/gpu" $gpu) }}: {{ .of.gpu.count }}
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
  volumes:
    {{- if $hasAccounts }}
    {{- include "slurminit.emptyDir" (dict "name" "etc" "memory" true "size" "16Mi") | nindent 4 }}
    {{- end }}
    {{- if not (or (eq .role "controller") (include "slurminit.hasSsh" .)) }}
    # A pod that comes back needs nothing of it.
    {{- include "slurminit.emptyDir" (dict "name" "state" "size" (.of.state | default "64Mi")) | nindent 4 }}
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
    - name: config
      configMap:
        name: {{ .top.Release.Name }}-config
    {{- include "slurminit.emptyDir" (dict "name" "tmp" "size" .of.tmp) | nindent 4 }}
    {{- if $values.sharedStorage.enabled }}
    - name: shared
      persistentVolumeClaim:
        claimName: {{ $values.sharedStorage.existingClaim | default (printf "%s-shared" .top.Release.Name) }}
    {{- else }}
    # The pod's own, and gone with it.
    {{- include "slurminit.emptyDir" (dict "name" "data" "size" .of.data) | nindent 4 }}
    {{- if $hasAccounts }}
    {{- include "slurminit.emptyDir" (dict "name" "home" "size" .of.home) | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- if eq .role "compute" }}
    # Counts as the pod's memory while it is used.
    {{- include "slurminit.emptyDir" (dict "name" "shm" "memory" true "size" (.of.shm | default (eq $gpu "none" | ternary "1Gi" "8Gi"))) | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "slurminit.mungeKeySecret" -}}
{{- .Values.mungeKeySecret | default (printf "%s-munge-key" .Release.Name) -}}
{{- end }}

{{- /* The ports of a pod: a list of name and port. */ -}}
{{- define "slurminit.ports" -}}
{{- $ports := list -}}
{{- if eq .role "controller" -}}
{{- $ports = append $ports (dict "name" "slurmctld" "port" 6817) -}}
{{- if ne .top.Values.accounting.mode "none" }}{{ $ports = append $ports (dict "name" "slurmdbd" "port" 6819) }}{{ end -}}
{{- else if eq .role "compute" -}}
{{- $ports = append $ports (dict "name" "slurmd" "port" 6818) -}}
{{- end -}}
{{- if include "slurminit.hasSsh" . }}{{ $ports = append $ports (dict "name" "ssh" "port" 2222) }}{{ end -}}
{{- if and .top.Values.metrics.enabled (ne .role "login") }}{{ $ports = append $ports (dict "name" "metrics" "port" (int .top.Values.metrics.port)) }}{{ end -}}
{{- toYaml $ports -}}
{{- end }}

{{- /* A headless Service: each pod has its name in DNS before it is ready. Takes `name`, too. */ -}}
{{- define "slurminit.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels:
    {{- include "slurminit.labels" . | nindent 4 }}
spec:
  clusterIP: None
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
  name: {{ .top.Release.Name }}-{{ .component }}
  labels:
    {{- include "slurminit.labels" . | nindent 4 }}
spec:
  {{- toYaml .of.podDisruptionBudget | nindent 2 }}
  selector:
    matchLabels:
      {{- include "slurminit.labels" . | nindent 6 }}
{{- end }}
{{- end }}
