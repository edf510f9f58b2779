{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "gputrace.name" -}}
{{- printf "%s-agent" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gputrace.selector" -}}
app.kubernetes.io/name: gputrace-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gputrace.labels" -}}
{{ include "gputrace.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "gputrace.account" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "gputrace.name" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- /* port is the one in config.listen, which the schema requires. */ -}}
{{- define "gputrace.port" -}}
{{- regexFind "[0-9]+$" .Values.config.listen -}}
{{- end -}}
