// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/profile"
	"github.com/prometheus/common/model"

	"github.com/gputrace/gputrace/agent/delivery"
	wire "github.com/gputrace/gputrace/agent/push"
	"github.com/gputrace/gputrace/export/pprof"
)

// PushConfig is a server to which metrics or profiles are sent.
type PushConfig struct {
	// Name identifies it in metrics and in the log.
	Name string `yaml:"name"`
	// Format is otlp_metrics, otlp_profiles (experimental) or pyroscope.
	Format               string `yaml:"format"`
	delivery.Destination `yaml:",inline"`
	// Interval is how often it is sent to. 0: one minute.
	Interval model.Duration `yaml:"interval"`
	// Profiles are the profiles of each process that are sent: gpu_heap, gpu_peak. Empty: gpu_heap. Not for otlp_metrics.
	Profiles []string `yaml:"profiles"`
}

// The formats of pushes.
const (
	otlpMetrics  = "otlp_metrics"
	otlpProfiles = "otlp_profiles"
	pyroscope    = "pyroscope"
)

// The profiles that are sent, as the paths below /debug/pprof/ call them.
const (
	heapProfile = "gpu_heap"
	peakProfile = "gpu_peak"
)

// check completes the configuration of a push, and reports what cannot be used.
func (c *PushConfig) check() error {
	if c.Name == "" {
		return errors.New("name is missing: metrics and the log use it, because the address may be a secret")
	}
	if formats := []string{otlpMetrics, otlpProfiles, pyroscope}; !slices.Contains(formats, c.Format) {
		return fmt.Errorf("format: %q must be one of %s", c.Format, strings.Join(formats, ", "))
	}
	if c.Interval == 0 {
		c.Interval = model.Duration(time.Minute)
	}
	if d := time.Duration(c.Interval); d < time.Second || d > 24*time.Hour {
		return fmt.Errorf("interval: %s is not between 1s and 1d", c.Interval)
	}
	if c.Format == otlpMetrics && len(c.Profiles) > 0 {
		return errors.New("profiles: the format otlp_metrics has none")
	}
	if c.Format != otlpMetrics && len(c.Profiles) == 0 {
		c.Profiles = []string{heapProfile}
	}
	for i, p := range c.Profiles {
		if p != heapProfile && p != peakProfile {
			return fmt.Errorf("profiles: %q must be one of %s, %s", p, heapProfile, peakProfile)
		}
		if slices.Contains(c.Profiles[:i], p) {
			return fmt.Errorf("profiles: %s is there twice", p)
		}
	}
	return c.Destination.Check()
}

const (
	// maxPushes is how many messages of a push may wait, and maxPushBytes how many bytes they may have; the oldest are dropped.
	maxPushes    = 1024
	maxPushBytes = 16 << 20
	// pushTries, pushPause and maxPushPause bound the attempts to send a message: they end after about five minutes.
	pushTries               = 10
	pushPause, maxPushPause = time.Second / 2, 5 * time.Minute
	// pushShare limits the writing of profiles to 1/pushShare of one CPU.
	pushShare = 20
)

// pusher sends to one server.
type pusher struct {
	*delivery.Sender
	config *PushConfig
	next   time.Time // when it is due; in the goroutine of push
}

// newPushers reads the secrets of the pushes.
func newPushers(all []PushConfig, log *slog.Logger) ([]*pusher, error) {
	var out []*pusher
	for i := range all {
		c := &all[i]
		o := delivery.Options{
			Kind: "push", Name: c.Name, Destination: c.Destination, Retry: pushRetries, MaxTries: pushTries, Pause: pushPause,
			MaxPause: maxPushPause, MaxMessages: maxPushes, MaxBytes: maxPushBytes, Newest: true, Log: log,
			Header: http.Header{"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"gzip"}}, Rejected: wire.Rejected,
		}
		switch c.Format {
		case otlpMetrics:
			o.Path = wire.MetricsPath
		case otlpProfiles:
			o.Path = wire.ProfilesPath
		case pyroscope:
			o.Path, o.Rejected = wire.PyroscopePath, nil
			o.Header = http.Header{"Content-Type": {"application/proto"}} // the profile in it is compressed
		}
		s, err := delivery.New(&o)
		if err != nil {
			return nil, err
		}
		out = append(out, &pusher{Sender: s, config: c})
	}
	return out, nil
}

// pushRetries reports whether a server that answers with a status may accept a message later: by OTLP's specification, or after a timeout.
func pushRetries(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusRequestTimeout,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// push sends metrics and profiles until ctx is done. Metrics are not held up by profiles.
func (a *Agent) push(ctx context.Context) {
	var metrics, profiles []*pusher
	var each sync.WaitGroup
	for _, p := range a.pushers {
		if p.config.Format == otlpMetrics {
			metrics = append(metrics, p)
		} else {
			profiles = append(profiles, p)
		}
		each.Go(func() { p.Run(ctx) })
	}
	each.Go(func() { schedule(ctx, metrics, a.pushMetrics) })
	each.Go(func() { schedule(ctx, profiles, a.pushProfiles) })
	each.Wait()
}

// schedule calls send with the pushers that are due, until ctx is done. Pushers with one interval are due together, so that they send the
// same figures; the first time is any within the interval, so that not all agents of a cluster send at one moment.
func schedule(ctx context.Context, all []*pusher, send func(context.Context, []*pusher)) {
	phase, began := rand.Float64(), time.Now()
	for _, p := range all {
		p.next = began.Add(time.Duration(phase * float64(p.config.Interval)))
	}
	for len(all) > 0 {
		first := slices.MinFunc(all, func(x, y *pusher) int { return x.next.Compare(y.next) })
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(first.next)):
		}
		now := time.Now()
		var due []*pusher
		for _, p := range all {
			if p.next.After(now) {
				continue
			}
			due = append(due, p)
			for !p.next.After(now) { // an interval that was missed is left out
				p.next = p.next.Add(time.Duration(p.config.Interval))
			}
		}
		send(ctx, due)
	}
}

// pushSource is what messages have of the agent itself.
func (a *Agent) pushSource() *wire.Source {
	return &wire.Source{Version: a.version, Node: a.labeler.node, Began: a.began}
}

// pushMetrics scrapes the agent once and sends the metrics to the servers that are due.
func (a *Agent) pushMetrics(ctx context.Context, due []*pusher) {
	families, err := a.registry(ctx, nil).Gather()
	if err != nil { // the others are there
		a.counts.warnings.Add(1)
		a.log.Warn("some metrics are missing", "error", err)
	}
	b, err := a.pushSource().Metrics(families, time.Now())
	if err != nil {
		a.counts.warnings.Add(1)
		a.log.Error("metrics were not sent", "error", err)
		return
	}
	for _, p := range due {
		p.Add(b)
	}
}

// pushProfiles writes each profile of each process once, and sends it to the servers that are due.
func (a *Agent) pushProfiles(ctx context.Context, due []*pusher) {
	for _, name := range []string{heapProfile, peakProfile} {
		to := slices.DeleteFunc(slices.Clone(due), func(p *pusher) bool { return !slices.Contains(p.config.Profiles, name) })
		if len(to) == 0 {
			continue
		}
		for _, t := range a.all() {
			began := time.Now()
			if err := a.pushProfile(ctx, t, name, to); err != nil && ctx.Err() == nil {
				a.counts.warnings.Add(1)
				a.log.Warn("a profile was not sent", "pid", t.process.PID(), "profile", name, "error", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(min(time.Since(began)*(pushShare-1), time.Duration(due[0].config.Interval))):
			}
		}
	}
}

// pushProfile writes a profile of a process, and sends it. A process that has just ended has none, which is no error.
func (a *Agent) pushProfile(ctx context.Context, t *target, name string, to []*pusher) error {
	var b bytes.Buffer
	err := a.writeProfile(ctx, &b, []*target{t}, pprof.InUse, name == peakProfile)
	if errors.Is(err, errNoTarget) || errors.Is(err, errStarting) {
		return nil
	}
	if err != nil {
		return err
	}
	labels, program := t.process.Labels(), t.process.Script()
	messages := map[string][]byte{} // by format
	for _, p := range to {
		format := p.config.Format
		switch {
		case messages[format] != nil:
		case format == pyroscope:
			messages[format] = wire.Pyroscope(name, b.Bytes(), labels, program)
		default:
			parsed, err := profile.ParseData(b.Bytes())
			if err != nil {
				return fmt.Errorf("read the profile: %w", err)
			}
			if messages[format], err = a.pushSource().Profiles(parsed, labels, program); err != nil {
				return err
			}
		}
		p.Add(messages[format])
	}
	return nil
}
