// SPDX-License-Identifier: Apache-2.0

// Package push writes metrics and profiles that exist already in the formats of servers to which they are sent: OTLP and Pyroscope. It
// computes no figure and sends nothing itself.
package push

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// scopeName is the instrumentation scope of what is sent.
const scopeName = "github.com/gputrace/gputrace/agent"

// The paths of OTLP over HTTP, below the address of the server. The one of profiles has the version of their development in it.
const (
	MetricsPath  = "v1/metrics"
	ProfilesPath = "v1development/profiles"
)

// Source is the agent from which metrics and profiles are.
type Source struct {
	// Version is the agent's.
	Version string
	// Node is the name of the machine. Empty: not known.
	Node string
	// Began is when the agent's own counters were 0.
	Began time.Time
}

// Metrics returns the families of a scrape as a compressed request to OTLP's metrics service, with the names, labels and values of the
// scrape. A family of another type than gauge, counter and summary is an error.
func (s *Source) Metrics(families []*dto.MetricFamily, at time.Time) ([]byte, error) {
	scope := &metrics.ScopeMetrics{Scope: &common.InstrumentationScope{Name: scopeName, Version: s.Version}}
	for _, f := range families {
		m, err := s.metric(f, uint64(at.UnixNano()))
		if err != nil {
			return nil, err
		}
		scope.Metrics = append(scope.Metrics, m)
	}
	of := map[string]string{"service.name": "gputrace", "service.version": s.Version, "host.name": s.Node, "service.instance.id": s.Node}
	// MetricsData and ExportMetricsServiceRequest are one message on the wire, and the package of the latter links gRPC.
	return compressed(&metrics.MetricsData{ResourceMetrics: []*metrics.ResourceMetrics{{
		Resource: &resource.Resource{Attributes: attributes(of)}, ScopeMetrics: []*metrics.ScopeMetrics{scope},
	}}})
}

// metric converts a family. at is the time of the scrape in nanoseconds since 1970.
func (s *Source) metric(f *dto.MetricFamily, at uint64) (*metrics.Metric, error) {
	out := &metrics.Metric{Name: f.GetName(), Description: f.GetHelp(), Unit: unit(f.GetName())}
	var numbers []*metrics.NumberDataPoint
	var summaries []*metrics.SummaryDataPoint
	for _, m := range f.Metric {
		labels := make(map[string]string, len(m.Label))
		for _, l := range m.Label {
			labels[l.GetName()] = l.GetValue()
		}
		n := &metrics.NumberDataPoint{Attributes: attributes(labels), TimeUnixNano: at}
		switch f.GetType() {
		case dto.MetricType_GAUGE:
			n.Value = &metrics.NumberDataPoint_AsDouble{AsDouble: m.Gauge.GetValue()}
		case dto.MetricType_COUNTER:
			n.Value = &metrics.NumberDataPoint_AsDouble{AsDouble: m.Counter.GetValue()}
			n.StartTimeUnixNano = uint64(s.Began.UnixNano())
			if created := m.Counter.CreatedTimestamp; created != nil {
				n.StartTimeUnixNano = uint64(created.AsTime().UnixNano())
			}
		case dto.MetricType_SUMMARY:
			summary := &metrics.SummaryDataPoint{
				Attributes: n.Attributes, TimeUnixNano: at, StartTimeUnixNano: uint64(s.Began.UnixNano()),
				Count: m.Summary.GetSampleCount(), Sum: m.Summary.GetSampleSum(),
			}
			for _, q := range m.Summary.Quantile {
				value := &metrics.SummaryDataPoint_ValueAtQuantile{Quantile: q.GetQuantile(), Value: q.GetValue()}
				summary.QuantileValues = append(summary.QuantileValues, value)
			}
			summaries = append(summaries, summary)
			continue
		}
		numbers = append(numbers, n)
	}
	switch f.GetType() {
	case dto.MetricType_GAUGE:
		out.Data = &metrics.Metric_Gauge{Gauge: &metrics.Gauge{DataPoints: numbers}}
	case dto.MetricType_COUNTER:
		out.Data = &metrics.Metric_Sum{Sum: &metrics.Sum{
			DataPoints: numbers, IsMonotonic: true, AggregationTemporality: metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE,
		}}
	case dto.MetricType_SUMMARY:
		out.Data = &metrics.Metric_Summary{Summary: &metrics.Summary{DataPoints: summaries}}
	default:
		return nil, fmt.Errorf("metric %s: OTLP gets no %s", f.GetName(), strings.ToLower(f.GetType().String()))
	}
	return out, nil
}

// unit returns the unit of a metric by the end of its name, in UCUM. Empty: it has none, or one that the name alone has.
func unit(name string) string {
	switch name = strings.TrimSuffix(name, "_total"); {
	case strings.HasSuffix(name, "_bytes"):
		return "By"
	case strings.HasSuffix(name, "_seconds"):
		return "s"
	}
	return ""
}

// attributes returns labels as attributes, without empty ones, in the order of their names.
func attributes(labels map[string]string) []*common.KeyValue {
	var out []*common.KeyValue
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		if value := labels[name]; value != "" {
			out = append(out, &common.KeyValue{Key: name, Value: text(value)})
		}
	}
	return out
}

func text(s string) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: s}}
}

func number(n int64) *common.AnyValue {
	return &common.AnyValue{Value: &common.AnyValue_IntValue{IntValue: n}}
}

// compressed returns a message with gzip around it.
func compressed(m proto.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("OTLP: %w", err)
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err = w.Write(b)
	if err = cmp.Or(err, w.Close()); err != nil {
		return nil, fmt.Errorf("OTLP: %w", err)
	}
	return out.Bytes(), nil
}

// Rejected returns the number of items of an accepted request that a server has refused, by its answer: field 1 of
// ExportMetricsServiceResponse and of ExportProfilesServiceResponse, partial_success, has the number as its field 1.
func Rejected(answer []byte) uint64 {
	inner, _ := field(answer, 1)
	_, n := field(inner, 1)
	return n
}

// field returns the last value of a field of a message: its bytes, or its number. Bytes that are no message have none.
func field(message []byte, wanted protowire.Number) (inner []byte, value uint64) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, 0
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return nil, 0
		}
		switch {
		case number != wanted:
		case kind == protowire.BytesType:
			inner, _ = protowire.ConsumeBytes(message)
		case kind == protowire.VarintType:
			value, _ = protowire.ConsumeVarint(message)
		}
		message = message[n:]
	}
	return inner, value
}

// serviceName returns the name of the service that a process is: the label service_name, if a rule has set it, otherwise the namespace and
// container, or the program.
func serviceName(labels map[string]string, program string) string {
	if labels["namespace"] != "" && labels["container"] != "" {
		return cmp.Or(labels["service_name"], labels["namespace"]+"/"+labels["container"])
	}
	return cmp.Or(labels["service_name"], program, "unspecified")
}

// attributeNames are the labels that have a name in OpenTelemetry's semantic conventions.
var attributeNames = map[string]string{
	"node": "host.name", "namespace": "k8s.namespace.name", "pod": "k8s.pod.name", "container": "k8s.container.name",
	"pod_uid": "k8s.pod.uid", "container_id": "container.id",
}

// processResource returns the attributes of a process, from its labels.
func processResource(labels map[string]string, program string) *resource.Resource {
	all := map[string]string{"service.name": serviceName(labels, program)}
	for name, value := range labels {
		all[cmp.Or(attributeNames[name], name)] = value
	}
	delete(all, "pid")
	delete(all, "service_name")
	out := attributes(all)
	if pid, err := strconv.ParseInt(labels["pid"], 10, 64); err == nil {
		out = append(out, &common.KeyValue{Key: "process.pid", Value: number(pid)})
	}
	return &resource.Resource{Attributes: out}
}
