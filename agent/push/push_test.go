// SPDX-License-Identifier: Apache-2.0

package push

import (
	"bytes"
	"compress/gzip"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	profiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

var source = Source{Version: "1.2.3", Node: "n1", Began: time.Unix(1000, 0)}

// open decodes a compressed request.
func open(t *testing.T, b []byte, m proto.Message) {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, proto.Unmarshal(text, m))
}

// words are attributes as text.
func words(all []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range all {
		out[a.Key] = a.Value.GetStringValue()
		if n, ok := a.Value.Value.(*common.AnyValue_IntValue); ok {
			out[a.Key] = strconv.FormatInt(n.IntValue, 10)
		}
	}
	return out
}

// scrape is a scrape with all types of the agent, and with values at the edges.
func scrape(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	bytes := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "x_live_bytes", Help: "Bytes."}, []string{"pod", "line"})
	bytes.WithLabelValues("ml", "a \"b\"\\\nc").Set(1 << 53)
	bytes.WithLabelValues("", "é").Set(-0.5)
	bytes.WithLabelValues("ml", "").Set(math.Inf(1))
	total := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x_seconds_total"}, []string{"pod"})
	total.WithLabelValues("ml").Add(3)
	r.MustRegister(bytes, total)
	families, err := r.Gather()
	require.NoError(t, err)
	return families
}

// TestMetricsAreTheScrape: every series of the text of a scrape is in the request with its labels and value, and nothing else is.
func TestMetricsAreTheScrape(t *testing.T) {
	families := scrape(t)
	var text bytes.Buffer
	for _, f := range families {
		_, err := expfmt.MetricFamilyToText(&text, f)
		require.NoError(t, err)
	}
	b, err := source.Metrics(families, time.Unix(2000, 5))
	require.NoError(t, err)
	var got metrics.MetricsData
	open(t, b, &got)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	want, err := parser.TextToMetricFamilies(&text)
	require.NoError(t, err)
	scope := got.ResourceMetrics[0].ScopeMetrics[0]
	require.Len(t, scope.Metrics, len(want))
	for _, m := range scope.Metrics {
		f := want[m.Name]
		require.Equal(t, f.GetHelp(), m.Description)
		points := append(m.GetGauge().GetDataPoints(), m.GetSum().GetDataPoints()...)
		if f.GetType() == dto.MetricType_SUMMARY {
			require.Equal(t, f.Metric[0].Summary.GetSampleSum(), m.GetSummary().DataPoints[0].Sum)
			require.Len(t, m.GetSummary().DataPoints[0].QuantileValues, len(f.Metric[0].Summary.Quantile))
			continue
		}
		require.Len(t, points, len(f.Metric), m.Name)
		for i, p := range points {
			labels := map[string]string{}
			for _, l := range f.Metric[i].Label {
				if l.GetValue() != "" {
					labels[l.GetName()] = l.GetValue()
				}
			}
			require.Equal(t, labels, words(p.Attributes))
			require.Equal(t, f.Metric[i].Gauge.GetValue()+f.Metric[i].Counter.GetValue(), p.GetAsDouble(), m.Name)
			require.EqualValues(t, 2000_000000005, p.TimeUnixNano)
		}
	}
	require.Equal(t, map[string]string{"service.name": "gputrace", "service.version": "1.2.3", "host.name": "n1", "service.instance.id": "n1"},
		words(got.ResourceMetrics[0].Resource.Attributes))
}

// TestMetricKinds: units, the beginning of counters, and a type that there is no rule for.
func TestMetricKinds(t *testing.T) {
	for name, want := range map[string]string{
		"x_bytes": "By", "x_bytes_total": "By", "x_seconds": "s", "x_seconds_total": "s", "x_bytes_per_step": "", "x_total": "", "x": "",
	} {
		require.Equal(t, want, unit(name), name)
	}
	created := time.Unix(1500, 0)
	r := prometheus.NewRegistry()
	desc := prometheus.NewDesc("a_total", "", nil, nil)
	r.MustRegister(one{prometheus.MustNewConstMetricWithCreatedTimestamp(desc, prometheus.CounterValue, 1, created)})
	r.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "b_total"}))
	families, err := r.Gather()
	require.NoError(t, err)
	families[1].Metric[0].Counter.CreatedTimestamp = nil
	b, err := source.Metrics(families, time.Unix(2000, 0))
	require.NoError(t, err)
	var got metrics.MetricsData
	open(t, b, &got)
	for i, want := range []time.Time{created, source.Began} {
		sum := got.ResourceMetrics[0].ScopeMetrics[0].Metrics[i].GetSum()
		require.True(t, sum.IsMonotonic)
		require.Equal(t, metrics.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE, sum.AggregationTemporality)
		require.EqualValues(t, want.UnixNano(), sum.DataPoints[0].StartTimeUnixNano)
	}
	r.MustRegister(prometheus.NewHistogram(prometheus.HistogramOpts{Name: "h"}))
	families, err = r.Gather()
	require.NoError(t, err)
	_, err = source.Metrics(families, time.Unix(2000, 0))
	require.EqualError(t, err, "metric h: OTLP gets no histogram")
}

// one is a collector of one metric.
type one struct{ prometheus.Metric }

// Describe implements prometheus.Collector.
func (c one) Describe(to chan<- *prometheus.Desc) { to <- c.Desc() }

// Collect implements prometheus.Collector.
func (c one) Collect(to chan<- prometheus.Metric) { to <- c.Metric }

// made is a profile with what profiles have: inlined functions, shared locations, mappings, labels of the process and of samples.
func made() *profile.Profile {
	library := &profile.Mapping{ID: 1, Start: 0x1000, Limit: 0x2000, Offset: 0x10, File: "/lib/a.so", BuildID: "abc"}
	python := &profile.Mapping{ID: 2, File: "[python]"}
	f := []*profile.Function{
		{ID: 1, Name: "train", SystemName: "train", Filename: "train.py", StartLine: 3}, {ID: 2, Name: "inner", Filename: "a.cc"},
		{ID: 3, Name: "outer", Filename: "a.cc"},
	}
	root := &profile.Location{ID: 1, Mapping: python, Line: []profile.Line{{Function: f[0], Line: 7}}}
	inlined := []profile.Line{{Function: f[1], Line: 1, Column: 2}, {Function: f[2], Line: 9}}
	leaf := &profile.Location{ID: 2, Mapping: library, Address: 0x1234, Line: inlined}
	bare := &profile.Location{ID: 3, Mapping: library, Address: 0x1300}
	sample := func(values []int64, layer string, size int64, stack ...*profile.Location) *profile.Sample {
		s := &profile.Sample{Location: stack, Value: values, Label: map[string][]string{"layer": {layer}, "pod": {"train-0"}, "phase": {""}}}
		if size > 0 {
			s.NumLabel, s.NumUnit = map[string][]int64{"bytes": {size}}, map[string][]string{"bytes": {"bytes"}}
		}
		return s
	}
	return &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"}},
		PeriodType: &profile.ValueType{Type: "space", Unit: "bytes"}, Period: 1, TimeNanos: 5_000_000_000, DurationNanos: 7,
		Mapping: []*profile.Mapping{library, python}, Function: f, Location: []*profile.Location{root, leaf, bare},
		Sample: []*profile.Sample{
			sample([]int64{2, 1024}, "torch", 512, leaf, root), sample([]int64{1, 512}, "device", 0, leaf, root),
			sample([]int64{0, 0}, "torch", 0, bare), sample([]int64{1, 4096}, "torch", 4096, bare, root), sample([]int64{3, 1}, "torch", 0),
		},
	}
}

// TestProfiles: each stack, label and value of a profile is found again in the request by the dictionary alone.
func TestProfiles(t *testing.T) {
	p := made()
	require.NoError(t, p.CheckValid())
	labels := map[string]string{"namespace": "ml", "pod": "train-0", "container": "main", "pid": "7", "rank": "1"}
	b, err := source.Profiles(p, labels, "train.py")
	require.NoError(t, err)
	var got profiles.ProfilesData
	open(t, b, &got)
	checkDictionary(t, got.Dictionary)
	require.Equal(t, map[string]string{
		"service.name": "ml/main", "k8s.namespace.name": "ml", "k8s.pod.name": "train-0", "k8s.container.name": "main",
		"process.pid": "7", "rank": "1",
	}, words(got.ResourceProfiles[0].Resource.Attributes))
	all := got.ResourceProfiles[0].ScopeProfiles[0].Profiles
	require.Len(t, all, 2)
	for i, out := range all {
		d := got.Dictionary
		require.Equal(t, p.SampleType[i].Type, d.StringTable[out.SampleType.TypeStrindex])
		require.Equal(t, p.SampleType[i].Unit, d.StringTable[out.SampleType.UnitStrindex])
		require.EqualValues(t, 5_000_000_000, out.TimeUnixNano)
		var want, have []string
		for _, s := range p.Sample {
			if s.Value[i] != 0 {
				want = append(want, asText(s)+" "+strconv.FormatInt(s.Value[i], 10))
			}
		}
		for _, s := range out.Samples {
			require.Len(t, s.Values, 1)
			have = append(have, inDictionary(d, s)+" "+strconv.FormatInt(s.Values[0], 10))
		}
		require.Equal(t, want, have)
	}
	p.Sample[0].Value = p.Sample[0].Value[:1]
	_, err = source.Profiles(p, nil, "")
	require.EqualError(t, err, "profile: a sample has 1 values for 2 types")
}

// checkDictionary checks the rules of the tables: the first entry is empty, and none is there twice.
func checkDictionary(t *testing.T, d *profiles.ProfilesDictionary) {
	t.Helper()
	require.Empty(t, d.StringTable[0])
	for _, first := range []proto.Message{d.MappingTable[0], d.LocationTable[0], d.FunctionTable[0], d.AttributeTable[0], d.StackTable[0]} {
		require.Zero(t, proto.Size(first))
	}
	require.Equal(t, make([]byte, 16), d.LinkTable[0].TraceId)
	seen := map[string]bool{}
	for _, s := range d.StringTable {
		require.False(t, seen[s], s)
		seen[s] = true
	}
	require.Len(t, d.StackTable, 4, "none, two different ones, and one without the root")
	require.Len(t, d.MappingTable, 3)
	require.Len(t, d.FunctionTable, 4)
	require.Len(t, d.LocationTable, 4)
}

// asText is a sample of pprof as text, without the labels of the process.
func asText(s *profile.Sample) string {
	var out strings.Builder
	for _, l := range s.Location {
		out.WriteString(l.Mapping.File + strconv.FormatUint(l.Address, 16))
		for _, n := range l.Line {
			out.WriteString("/" + n.Function.Name + n.Function.Filename + strconv.FormatInt(n.Line*1000+n.Column, 10))
		}
		out.WriteString(" ")
	}
	out.WriteString("layer=" + s.Label["layer"][0])
	if n := s.NumLabel["bytes"]; n != nil {
		out.WriteString(" bytes=" + strconv.FormatInt(n[0], 10) + s.NumUnit["bytes"][0])
	}
	return out.String()
}

// inDictionary is the same of a sample of OTLP.
func inDictionary(d *profiles.ProfilesDictionary, s *profiles.Sample) string {
	var out strings.Builder
	for _, i := range d.StackTable[s.StackIndex].LocationIndices {
		l := d.LocationTable[i]
		out.WriteString(d.StringTable[d.MappingTable[l.MappingIndex].FilenameStrindex] + strconv.FormatUint(l.Address, 16))
		for _, n := range l.Lines {
			f := d.FunctionTable[n.FunctionIndex]
			out.WriteString("/" + d.StringTable[f.NameStrindex] + d.StringTable[f.FilenameStrindex] + strconv.FormatInt(n.Line*1000+n.Column, 10))
		}
		out.WriteString(" ")
	}
	var attributes []string
	for _, i := range s.AttributeIndices {
		a := d.AttributeTable[i]
		value := a.Value.GetStringValue()
		if value == "" {
			value = strconv.FormatInt(a.Value.GetIntValue(), 10)
		}
		attributes = append(attributes, d.StringTable[a.KeyStrindex]+"="+value+d.StringTable[a.UnitStrindex])
	}
	return out.String() + strings.Join(attributes, " ")
}

// TestServiceName: a rule comes first, then the container, then the program.
func TestServiceName(t *testing.T) {
	for _, c := range []struct {
		labels        map[string]string
		program, want string
	}{
		{map[string]string{"service_name": "s", "namespace": "n", "container": "c"}, "p", "s"},
		{map[string]string{"service_name": "s"}, "p", "s"}, {map[string]string{"namespace": "n", "container": "c"}, "p", "n/c"},
		{map[string]string{"namespace": "n"}, "p", "p"}, {nil, "", "unspecified"},
	} {
		require.Equal(t, c.want, serviceName(c.labels, c.program))
	}
}

// TestRejected: the number of refused items is found in an answer, and whatever a server answers is no failure.
func TestRejected(t *testing.T) {
	message := func(n uint64) []byte {
		inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), n)
		return appendField(nil, 1, appendField(inner, 2, []byte("too old")))
	}
	require.EqualValues(t, 3, Rejected(message(3)))
	require.EqualValues(t, 2, Rejected(append(appendField(nil, 9, []byte("?")), message(2)...)))
	for _, b := range [][]byte{
		nil, {}, []byte("{}"), []byte(`{"partialSuccess":{}}`), {0xff}, {10, 0xff}, message(3)[:3], bytes.Repeat([]byte{10}, 100),
	} {
		require.Zero(t, Rejected(b), "%q", b)
	}
}

// FuzzRejected: no answer of a server makes the agent fail.
func FuzzRejected(f *testing.F) {
	f.Add([]byte{10, 2, 8, 3})
	f.Fuzz(func(_ *testing.T, b []byte) { Rejected(b) })
}
