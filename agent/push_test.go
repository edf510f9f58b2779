// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"
	metrics "go.opentelemetry.io/proto/otlp/metrics/v1"
	profiles "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/gputrace/gputrace/process"
)

// collecting is a server that keeps the last body that each path received.
type collecting struct {
	*httptest.Server
	mu   sync.Mutex
	last map[string][]byte
	n    map[string]int
}

func collect(t *testing.T) *collecting {
	c := &collecting{last: map[string][]byte{}, n: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var in io.Reader = r.Body
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if in, err = gzip.NewReader(r.Body); err != nil {
				t.Error(err)
				return
			}
		}
		b, err := io.ReadAll(in)
		if err != nil {
			t.Error(err)
		}
		path := r.URL.Path + " " + r.Header.Get("Content-Type")
		c.mu.Lock()
		defer c.mu.Unlock()
		c.last[path] = b
		c.n[path]++
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collecting) get(path string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last[path]
}

// TestPush: metrics and profiles reach the servers with the values that the agent serves, and the agent counts what it sends.
func TestPush(t *testing.T) {
	c := collect(t)
	r := start(t, fmt.Sprintf(`push:
- {name: m, format: otlp_metrics, url: %[1]q, interval: 1s}
- {name: p, format: otlp_profiles, url: '%[1]s/base', interval: 1s}
- {name: y, format: pyroscope, url: %[1]q, interval: 1s, profiles: [gpu_heap, gpu_peak]}
`, c.URL))
	s := <-r.sources
	one := &madeTarget{pid: 1 << 30, file: "/app/train.py", about: process.About{Name: "python", Environ: []string{"SLURM_JOB_ID=77"}}}
	s.arrive(one, 3)
	r.until("/metrics", `gputrace_live_bytes{`)
	const text = `outcome="sent",push="%s"} `
	for _, name := range []string{"m", "p", "y"} {
		require.Eventually(t, func() bool {
			_, b := r.get("/metrics")
			return !strings.Contains(b, fmt.Sprintf(text, name)+"0\n")
		}, 20*time.Second, 10*time.Millisecond, name)
	}
	var m metrics.MetricsData
	live := func() (out []float64) {
		require.NoError(t, proto.Unmarshal(c.get("/v1/metrics application/x-protobuf"), &m))
		for _, metric := range m.ResourceMetrics[0].ScopeMetrics[0].Metrics {
			if metric.Name == "gputrace_live_bytes" {
				out = append(out, metric.GetGauge().DataPoints[0].GetAsDouble())
			}
		}
		return out
	}
	require.Eventually(t, func() bool { return len(live()) == 1 }, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, []float64{1536}, live())
	var p profiles.ProfilesData
	require.NoError(t, proto.Unmarshal(c.get("/base/v1development/profiles application/x-protobuf"), &p))
	var sum int64
	all := p.ResourceProfiles[0].ScopeProfiles[0].Profiles
	for _, sample := range all[3].Samples {
		sum += sample.Values[0]
	}
	require.Equal(t, "inuse_space", p.Dictionary.StringTable[all[3].SampleType.TypeStrindex])
	require.EqualValues(t, 1536, sum)
	raw := inner(t, inner(t, inner(t, c.get("/push.v1.PusherService/Push application/proto"), 1), 2), 1)
	parsed, err := profile.ParseData(raw)
	require.NoError(t, err)
	require.Len(t, parsed.Sample, 3)
}

// inner is the last value of a field of bytes.
func inner(t *testing.T, message []byte, wanted protowire.Number) (out []byte) {
	t.Helper()
	for len(message) > 0 {
		number, _, n := protowire.ConsumeTag(message)
		require.Positive(t, n)
		value, size := protowire.ConsumeBytes(message[n:])
		require.Positive(t, size)
		if number == wanted {
			out = value
		}
		message = message[n+size:]
	}
	return out
}

// TestPushWithoutServer: a server that is not there does not hold up the others, and what waits for it is bounded and counted.
func TestPushWithoutServer(t *testing.T) {
	c := collect(t)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	const two = "push: [{name: a, format: otlp_metrics, url: %q}, {name: b, format: otlp_metrics, url: %q}]"
	config, err := ParseConfig(fmt.Appendf(nil, two, closed.URL, c.URL))
	require.NoError(t, err)
	a, err := New(config, "test", nil, quiet())
	require.NoError(t, err)
	a.pushMetrics(t.Context(), a.pushers)
	go a.pushers[1].Run(t.Context())
	require.Eventually(t, func() bool { return a.pushers[1].Counts().Sent == 1 }, 10*time.Second, time.Millisecond)
	for range 2 * maxPushes {
		a.pushers[0].Add([]byte("x"))
	}
	require.Equal(t, maxPushes, a.pushers[0].Counts().Waiting)
	require.EqualValues(t, maxPushes+1, a.pushers[0].Counts().Dropped)
	for status, again := range map[int]bool{
		429: true, 408: true, 502: true, 503: true, 504: true, 500: false, 400: false, 401: false, 307: false,
	} {
		require.Equal(t, again, pushRetries(status), status)
	}
}

// TestPushConfig: what cannot be used is refused before the agent starts, and what is left out has defaults.
func TestPushConfig(t *testing.T) {
	for text, want := range map[string]string{
		"{format: pyroscope, url: 'http://a'}":                                               "name is missing",
		"{name: a, url: 'http://a'}":                                                         `"" must be one of otlp_metrics, otlp_profiles`,
		"{name: a, format: otlp, url: 'http://a'}":                                           `"otlp" must be one of`,
		"{name: a, format: pyroscope}":                                                       "set either url or url_file",
		"{name: a, format: pyroscope, url: 'http://a', interval: 10ms}":                      "interval: 10ms is not between 1s and 1d",
		"{name: a, format: otlp_metrics, url: 'http://a', profiles: [gpu_heap]}":             "the format otlp_metrics has none",
		"{name: a, format: pyroscope, url: 'http://a', profiles: [heap]}":                    `"heap" must be one of gpu_heap, gpu_peak`,
		"{name: a, format: pyroscope, url: 'http://a', profiles: [gpu_heap, gpu_heap]}":      "gpu_heap is there twice",
		"{name: a, format: pyroscope, url: 'http://a', username: u}":                         "set username and password_file together",
		"{name: a, format: pyroscope, url: 'http://a', pasword_file: u}":                     "pasword_file",
		"{name: a, format: pyroscope, url: u}, {name: a, format: otlp_metrics, url: 'u'}":    "the name a is there twice",
		"{name: a, format: pyroscope, url: u, headers: {'a:b': c}}":                          `"a:b" cannot be a header`,
		"{name: a, format: pyroscope, url: u, token_file: t, username: u, password_file: p}": "set either token_file or username",
	} {
		_, err := ParseConfig([]byte("push: [" + text + "]"))
		require.ErrorContains(t, err, want, text)
	}
	c, err := ParseConfig([]byte("push: [{name: a, format: pyroscope, url: 'secret://a'}]"))
	require.NoError(t, err)
	require.Equal(t, []string{heapProfile}, c.Push[0].Profiles)
	require.Equal(t, "1m", c.Push[0].Interval.String())
	_, err = New(c, "test", nil, quiet())
	require.EqualError(t, err, "push a: the address is not an http or https URL")
	file := filepath.Join(t.TempDir(), "none")
	c.Push[0].URL, c.Push[0].URLFile = "", file
	_, err = New(c, "test", nil, quiet())
	require.ErrorIs(t, err, os.ErrNotExist)
}
