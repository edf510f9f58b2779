// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	profiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// receivers are a real OpenTelemetry Collector, and a server that speaks Pyroscope's push API by the code of Pyroscope's own module. Both
// write what they receive to files.
type receivers struct {
	programs, dir, collector, pyroscope string
}

// collectorConfig writes metrics and profiles as lines of JSON.
const collectorConfig = `
receivers: {otlp: {protocols: {http: {endpoint: %q}}}}
exporters:
  file/metrics: {path: %q, flush_interval: 100ms}
  file/profiles: {path: %q, flush_interval: 100ms}
service:
  pipelines:
    metrics: {receivers: [otlp], exporters: [file/metrics]}
    profiles: {receivers: [otlp], exporters: [file/profiles]}
`

// newReceivers builds the servers. They are not there until start.
func newReceivers(t *testing.T) *receivers {
	t.Helper()
	programs, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "receivers")
	require.NoError(t, err)
	return &receivers{programs, t.TempDir(), freeAddress(t), freeAddress(t)}
}

// config is the part of the agent's configuration that sends to them.
func (r *receivers) config() string {
	return fmt.Sprintf("push:\n- {name: metrics, format: otlp_metrics, url: 'http://%[1]s', interval: 1s}\n"+
		"- {name: profiles, format: otlp_profiles, url: 'http://%[1]s', interval: 1s}\n"+
		"- {name: pyroscope, format: pyroscope, url: 'http://%[2]s', interval: 1s}\n", r.collector, r.pyroscope)
}

// start starts the servers.
func (r *receivers) start(t *testing.T) {
	t.Helper()
	file := filepath.Join(r.dir, "collector.yml")
	config := fmt.Sprintf(collectorConfig, r.collector, filepath.Join(r.dir, "metrics.json"), filepath.Join(r.dir, "profiles.json"))
	require.NoError(t, os.WriteFile(file, []byte(config), 0o644))
	for _, cmd := range []*exec.Cmd{
		exec.Command(filepath.Join(r.programs, "collector"), "--config", file, "--feature-gates=+service.profilesSupport"),
		exec.Command(filepath.Join(r.programs, "pyroscope"), r.pyroscope, r.dir),
	} {
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("%s: %s", cmd.Path, out.String())
			}
		})
	}
	for _, address := range []string{r.collector, r.pyroscope} {
		eventually(t, "a receiver that listens", func() bool {
			c, err := net.DialTimeout("tcp", address, time.Second)
			if err == nil {
				_ = c.Close()
			}
			return err == nil
		})
	}
}

// check waits until the servers have the job's figures: each series of /metrics with its value, and profiles of the live bytes.
func (r *receivers) check(t *testing.T, a *nodeAgent, live uint64) {
	r.start(t)
	var want, got map[string]float64
	defer func() {
		if t.Failed() {
			t.Logf("/metrics has %v\nthe Collector has %v", want, got)
		}
	}()
	eventually(t, "the series of the job in the Collector", func() bool {
		want, got = ofText(t, a.get("/metrics")), r.series(t)
		for series, v := range want {
			if v != got[series] {
				return false
			}
		}
		return len(want) > 10 && len(got) == len(want)
	})
	eventually(t, "the live bytes in the Collector's profiles", func() bool { return r.inProfiles(t) == live })
	eventually(t, "the live bytes in Pyroscope's profiles", func() bool { return r.inPyroscope(t) == live })
	for _, push := range []string{"metrics", "profiles", "pyroscope"} {
		a.until(t, "/metrics", `gputrace_agent_push_messages_total\{outcome="sent",push="`+push+`"\} [1-9]`)
	}
	a.until(t, "/metrics", `gputrace_agent_push_retries_total\{push="metrics"\} [1-9]`)
	a.until(t, "/metrics", `gputrace_agent_push_rejected_total\{push="metrics"\} 0\n`)
	a.until(t, "/metrics", `gputrace_agent_push_rejected_total\{push="profiles"\} 0\n`)
	require.NotContains(t, a.stderr.String(), r.collector)
	require.NotContains(t, a.stderr.String(), r.pyroscope)
}

// ofJob reports whether a series is the job's.
func ofJob(name string, labels []string) bool {
	return strings.HasPrefix(name, "gputrace_") && strings.Contains(strings.Join(labels, ","), "pod=train-0")
}

// ofText are the job's series of a scrape, with their labels.
func ofText(t *testing.T, text string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	require.NoError(t, err)
	out := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				if l.GetValue() != "" {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}
			if sort.Strings(labels); ofJob(name, labels) && f.GetType() != dto.MetricType_SUMMARY {
				out[name+" "+strings.Join(labels, ",")] = m.Gauge.GetValue() + m.Counter.GetValue()
			}
		}
	}
	return out
}

// lastLine decodes the last whole line of a file of the Collector. It reports whether there is one.
func (r *receivers) lastLine(t *testing.T, name string, m proto.Message) bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(r.dir, name))
	end := bytes.LastIndexByte(b, '\n')
	if err != nil || end < 0 {
		return false
	}
	b = b[:end]
	require.NoError(t, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(b[bytes.LastIndexByte(b, '\n')+1:], m))
	return true
}

// series are the job's series that the Collector received last.
func (r *receivers) series(t *testing.T) map[string]float64 {
	out := map[string]float64{}
	var in metrics.MetricsData
	if !r.lastLine(t, "metrics.json", &in) {
		return out
	}
	for _, m := range in.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		for _, p := range append(m.GetGauge().GetDataPoints(), m.GetSum().GetDataPoints()...) {
			var labels []string
			for _, a := range p.Attributes {
				labels = append(labels, a.Key+"="+a.Value.GetStringValue())
			}
			if sort.Strings(labels); ofJob(m.Name, labels) {
				out[m.Name+" "+strings.Join(labels, ",")] = p.GetAsDouble()
			}
		}
	}
	return out
}

// inProfiles is the live memory of PyTorch's allocator in the profile that the Collector received last, bytes.
func (r *receivers) inProfiles(t *testing.T) (sum uint64) {
	var in profiles.ProfilesData
	if !r.lastLine(t, "profiles.json", &in) {
		return 0
	}
	d := in.Dictionary
	if !slices.ContainsFunc(in.ResourceProfiles[0].Resource.Attributes, func(a *common.KeyValue) bool {
		// The Collector moves texts into the dictionary.
		return d.StringTable[a.KeyStrindex] == "k8s.pod.name" && d.StringTable[a.Value.GetStringValueStrindex()] == "train-0"
	}) {
		return 0 // it waited since before the API server was asked
	}
	for _, p := range in.ResourceProfiles[0].ScopeProfiles[0].Profiles {
		if d.StringTable[p.SampleType.TypeStrindex] != "inuse_space" {
			continue
		}
		for _, s := range p.Samples {
			for _, i := range s.AttributeIndices {
				if a := d.AttributeTable[i]; d.StringTable[a.KeyStrindex] == "layer" && a.Value.GetStringValue() == "torch" {
					sum += uint64(s.Values[0])
				}
			}
		}
	}
	return sum
}

// inPyroscope is the same of the last profile that was pushed to Pyroscope.
func (r *receivers) inPyroscope(t *testing.T) (sum uint64) {
	files, err := filepath.Glob(filepath.Join(r.dir, "[0-9]*.json"))
	require.NoError(t, err)
	if len(files) == 0 {
		return 0
	}
	sort.Slice(files, func(x, y int) bool {
		return len(files[x]) < len(files[y]) || len(files[x]) == len(files[y]) && files[x] < files[y]
	})
	b, err := os.ReadFile(files[len(files)-1])
	require.NoError(t, err)
	var in struct {
		Series []struct {
			Labels  []struct{ Name, Value string }
			Samples []struct{ RawProfile []byte }
		}
	}
	require.NoError(t, json.Unmarshal(b, &in))
	require.Len(t, in.Series, 1)
	labels := map[string]string{}
	for _, l := range in.Series[0].Labels {
		labels[l.Name] = l.Value
	}
	if labels["__name__"] != "gpu_heap" || labels["service_name"] != "ml/main" || labels["pod"] != "train-0" {
		return 0 // it waited since before the API server was asked
	}
	p, err := profile.ParseData(in.Series[0].Samples[0].RawProfile)
	require.NoError(t, err)
	require.Equal(t, "inuse_space", p.SampleType[3].Type)
	for _, s := range p.Sample {
		if s.Label["layer"][0] == "torch" {
			sum += uint64(s.Value[3])
		}
	}
	return sum
}
