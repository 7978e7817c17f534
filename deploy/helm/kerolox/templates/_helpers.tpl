{{- define "kerolox.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kerolox.selector" -}}
app.kubernetes.io/name: kerolox
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kerolox.labels" -}}
{{ include "kerolox.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kerolox.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* host:port of all name servers, joined by ; */}}
{{- define "kerolox.nameServers" -}}
{{- $name := printf "%s-namesrv" (include "kerolox.fullname" .) -}}
{{- $found := list -}}
{{- range $i := until (int .Values.nameServers.replicas) -}}
{{- $found = append $found (printf "%s-%d.%s.%s.svc.%s:9876" $name $i $name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join ";" $found -}}
{{- end -}}

{{/* host:port of all controllers, joined by ; */}}
{{- define "kerolox.controllers" -}}
{{- $name := printf "%s-controller" (include "kerolox.fullname" .) -}}
{{- $found := list -}}
{{- range $i := until (int .Values.controllers.replicas) -}}
{{- $found = append $found (printf "%s-%d.%s.%s.svc.%s:9878" $name $i $name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
{{- join ";" $found -}}
{{- end -}}

{{/* Lines of a map of settings. Numbers come as floats: 1073741824 is not to become 1.07e+09. */}}
{{- define "kerolox.settings" -}}
{{- range $key, $value := . }}
{{ $key }}={{ if kindIs "float64" $value }}{{ if eq (floor $value) $value }}{{ int64 $value }}{{ else }}{{ $value }}{{ end }}{{ else }}{{ $value }}{{ end }}
{{- end }}
{{- end -}}

{{- define "kerolox.tlsServer" -}}
{{- if .Values.tls.existingSecret }}
tls.test.mode.enable=false
tls.server.mode={{ .Values.tls.mode }}
tls.server.certPath=/etc/kerolox-tls/tls.crt
tls.server.keyPath=/etc/kerolox-tls/tls.key
{{- end }}
{{- end -}}

{{- define "kerolox.tlsClient" -}}
{{- if .Values.tls.existingSecret }}
tls.enable=true
tls.client.trustCertPath=/etc/kerolox-tls/ca.crt
{{- end }}
{{- end -}}

{{- define "kerolox.namesrvConf" -}}
metricsExporterType=PROM
metricsPromExporterHost=*
{{- include "kerolox.tlsServer" . }}
{{- include "kerolox.settings" .Values.nameServers.settings }}
{{ end -}}

{{/* controller.conf of a pod; .index says which, .root is the chart's scope. */}}
{{- define "kerolox.controllerConf" -}}
{{- $root := .root -}}
{{- $peers := list -}}
{{- range $i, $address := splitList ";" (include "kerolox.controllers" $root) -}}
{{- $peers = append $peers (printf "n%d-%s" $i $address) -}}
{{- end -}}
controllerDLegerPeers={{ join ";" $peers }}
controllerDLegerSelfId=n{{ .index }}
metricsExporterType=PROM
metricsPromExporterHost=*
{{- with $root.Values.controllers.secret }}
controllerSecret={{ . }}
{{- end }}
{{- include "kerolox.tlsServer" $root }}
{{- include "kerolox.tlsClient" $root }}
{{- include "kerolox.settings" $root.Values.controllers.settings }}
{{ end -}}

{{/* broker.conf of a pod; .group and .index say which, .root is the chart's scope. */}}
{{- define "kerolox.brokerConf" -}}
{{- $root := .root -}}
{{- $brokers := $root.Values.brokers -}}
{{- $service := printf "%s-broker-%s" (include "kerolox.fullname" $root) .group -}}
{{- $host := printf "%s-%d.%s.%s.svc.%s" $service .index $service $root.Release.Namespace $root.Values.clusterDomain -}}
brokerClusterName={{ $brokers.cluster }}
brokerName=broker-{{ .group }}
brokerId={{ .index }}
brokerRole={{ if eq .index 0 }}{{ $brokers.replication }}{{ else }}SLAVE{{ end }}
namesrvAddr={{ include "kerolox.nameServers" $root }}
brokerIP1={{ $host }}
brokerIP2={{ $host }}
grpcServerPort=8081
{{- $pod := printf "%s-%d" .group .index }}
{{- /* Named, since a Service stands before all brokers. */}}
{{- $grpc := printf "%s:8081" $host }}
{{- if $brokers.external.enabled }}
{{- $grpc = get $brokers.external.grpcAddresses $pod | default $grpc }}
advertisedAddress={{ required (printf "brokers.external.addresses needs host:port of %s" $pod) (get $brokers.external.addresses $pod) }}
{{- end }}
grpcAdvertisedAddress={{ $grpc }}
metricsExporterType=PROM
metricsPromExporterHost=*
{{- if $root.Values.accounts.existingSecret }}
aclEnable=true
aclFile=/etc/kerolox-accounts/plain_acl.yml
namesrvCredentialsFile=/etc/kerolox-accounts/tools.yml
{{- if $root.Values.controllers.replicas }}
{{- if not (get $brokers.settings "haAllowedSlaves") }}
{{- fail "brokers.settings.haAllowedSlaves: the addresses of broker pods; under controllers slaves show no account" }}
{{- end }}
{{- else }}
haAclEnable=true
{{- end }}
{{- end }}
{{- if $root.Values.controllers.replicas }}
enableControllerMode=true
controllerAddr={{ include "kerolox.controllers" $root }}
{{- if not (hasKey $brokers.settings "allAckInSyncStateSet") }}
allAckInSyncStateSet=true
{{- end }}
{{- end }}
{{- include "kerolox.tlsServer" $root }}
{{- include "kerolox.tlsClient" $root }}
{{- if $root.Values.tls.existingSecret }}
haTlsMode={{ $root.Values.tls.mode }}
{{- end }}
{{- include "kerolox.settings" $brokers.settings }}
{{ end -}}

{{- define "kerolox.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "kerolox.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Health checks of a server. A start that reads a large log may take its time. */}}
{{- define "kerolox.probes" -}}
startupProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: 5
  failureThreshold: 360
livenessProbe:
  httpGet: {path: /health/live, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /health/ready, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/* Where a pod may run; .labels has what its fellows have in common, .root is the chart's scope. */}}
{{- define "kerolox.placement" -}}
affinity:
  podAntiAffinity:
    {{- if eq .root.Values.antiAffinity "hard" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- .labels | nindent 12 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- .labels | nindent 14 }}
    {{- end }}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "kerolox.secretMounts" -}}
{{- if .Values.accounts.existingSecret }}
- {name: accounts, mountPath: /etc/kerolox-accounts, readOnly: true}
{{- end }}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/kerolox-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "kerolox.secretVolumes" -}}
{{- with .Values.accounts.existingSecret }}
- name: accounts
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- define "kerolox.claim" -}}
metadata:
  name: data
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storageClassName }}
  storageClassName: {{ . }}
  {{- end }}
  resources:
    requests:
      storage: {{ .size }}
{{- end -}}
