{{- define "strandline.name" -}}
{{- default .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "strandline.labels" -}}
app.kubernetes.io/name: strandline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "strandline.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "strandline.name" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "strandline.image" -}}
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ default .Chart.AppVersion .Values.image.tag }}{{ end }}
{{- end -}}

{{/* The environment of every container: where the lake is, and who may use it. */}}
{{- define "strandline.env" -}}
- name: STRAND_LAKE
  value: /lake
- name: STRAND_LAKE_LEDGER
  valueFrom:
    secretKeyRef:
      name: {{ .Values.lake.ledgerSecret }}
      key: ledger
- name: STRAND_LAKE_WAREHOUSE
  value: {{ required "lake.warehouse is needed: s3://BUCKET/PREFIX" .Values.lake.warehouse | quote }}
{{- with .Values.lake.s3.endpoint }}
- name: STRAND_S3_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.lake.s3.region }}
- name: STRAND_S3_REGION
  value: {{ . | quote }}
{{- end }}
- name: STRAND_SERVER_METRICS
  value: {{ .Values.metrics.access | quote }}
{{- with .Values.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "strandline.envFrom" -}}
{{- with .Values.lake.s3.credentialsSecret }}
envFrom:
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end -}}

{{- define "strandline.mounts" -}}
- name: lake
  mountPath: /lake
- name: config
  mountPath: /lake/strand.toml
  subPath: strand.toml
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end -}}

{{- define "strandline.volumes" -}}
- name: lake
  emptyDir: {}
- name: config
  secret:
    secretName: {{ include "strandline.name" . }}
- name: tmp
  emptyDir: {}
{{- end -}}

{{- define "strandline.security" -}}
runAsNonRoot: true
runAsUser: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "strandline.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
