// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gputrace/gputrace/agent/delivery"
	"github.com/gputrace/gputrace/agent/ring"
	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export/verdict"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recorder"
)

// metric is a metric's name, help and type.
type metric struct {
	name, help string
	kind       prometheus.ValueType
}

// The metrics of a process. All have the labels of the process; a process that has ended has none.
var (
	liveBytes     = gauge("gputrace_live_bytes", "Bytes that the framework's allocator has handed out, as the allocator itself counts them.")
	peakBytes     = gauge("gputrace_peak_bytes", "Maximum of gputrace_live_bytes since the attach.")
	reservedBytes = gauge("gputrace_reserved_bytes", "Bytes that the framework's allocator has reserved from the driver.")
	beforeBytes   = gauge("gputrace_before_attach_bytes", "Part of gputrace_live_bytes that was allocated before the attach.")
	driverBytes   = gauge("gputrace_driver_live_bytes", "Bytes obtained from the driver since the attach and not freed.")
	usedBytes     = gauge("gputrace_device_used_bytes", "Bytes of the device that the driver attributes to the process.")
	totalBytes    = gauge("gputrace_device_total_bytes", "Size of the device.")
	unexplained   = gauge("gputrace_unexplained_bytes", "gputrace_device_used_bytes less traced memory: context, libraries, earlier memory.")
	lineBytes     = gauge("gputrace_line_live_bytes", "Live bytes by the program's own line, the largest lines only.")
	phaseBytes    = gauge("gputrace_phase_live_bytes", "Live bytes by the phase of the program in which they were allocated.")
	growthBytes   = gauge("gputrace_growth_bytes_per_step", "Bytes by which device memory grows in each step; 0: it is steady.")
	growthRate    = gauge("gputrace_growth_bytes_per_second", "Bytes by which device memory grows in each second; 0: steady, or not known.")
	fullSeconds   = gauge("gputrace_full_seconds", "Time until a device is full if it grows on as it does.")
	verdicts      = gauge("gputrace_verdict", "1 for the verdict on the process: growing, steady or unknown.")
	processInfo   = gauge("gputrace_process_info", "1, with the program and what was found in it.")
	attachedTime  = gauge("gputrace_attached_timestamp_seconds", "When the process was attached to.")
	steps         = counter("gputrace_steps_total", "Complete steps since the attach.")
	allocations   = counter("gputrace_allocations_total", "Allocations since the attach.")
	freed         = counter("gputrace_frees_total", "Frees since the attach.")
	refusals      = counter("gputrace_out_of_memory_total", "Requests for memory that failed since the attach.")
	degraded      = gauge("gputrace_degraded", "Stacks left out because of cpu_budget: 0 none, 1 three of 4, 2 fifteen of 16, 3 all.")
	leftOut       = counter("gputrace_stacks_left_out_total", "Allocations recorded without a stack because of cpu_budget.")
	tracingTime   = counter("gputrace_tracing_cpu_seconds_total", "CPU time that tracing takes: programs measured, trap estimated.")
	lostEvents    = counter("gputrace_lost_events_total", "Events lost since the attach; bytes are corrected by the allocator's state.")
)

// The metrics of the agent itself.
var (
	up              = gauge("gputrace_agent_up", "1 while the recorder runs, 0 while it is starting.")
	targetCount     = gauge("gputrace_agent_targets", "Processes that are traced.")
	attachedCount   = counter("gputrace_agent_attached_total", "Processes that were attached to.")
	endedCount      = counter("gputrace_agent_ended_total", "Processes that ended, or became another program.")
	refusedCount    = counter("gputrace_agent_refused_total", "Times that max_targets or memory_limit refused a process.")
	warningCount    = counter("gputrace_agent_warnings_total", "Warnings of the recorder, such as a process that could not be attached to.")
	restartCount    = counter("gputrace_agent_recorder_restarts_total", "Times that the recorder started anew.")
	summarySeconds  = counter("gputrace_agent_judging_seconds_total", "Time spent on the lines and verdicts of processes.")
	summaryCount    = counter("gputrace_agent_judged_total", "Times that the lines and the verdict of a process were computed.")
	profileCount    = counter("gputrace_agent_profiles_total", "Profiles that were served.")
	probeHits       = counter("gputrace_agent_probe_hits_total", "Runs of the probes since the recorder started, by outcome.")
	unjudgedCount   = counter("gputrace_agent_unjudged_failures_total", "Failed requests without a summary, because many failed at once.")
	hookMessages    = counter("gputrace_agent_webhook_messages_total", "Messages to a webhook: sent, failed, or dropped because many waited.")
	pushMessages    = counter("gputrace_agent_push_messages_total", "Messages of a push: sent, failed, or dropped because many waited.")
	pushAgain       = counter("gputrace_agent_push_retries_total", "Attempts to send a message of a push after the first one.")
	pushRejected    = counter("gputrace_agent_push_rejected_total", "Data points or profiles that a server refused in accepted messages.")
	pushSent        = counter("gputrace_agent_push_sent_bytes_total", "Bytes of the messages that were sent.")
	pushWaiting     = gauge("gputrace_agent_push_waiting_bytes", "Bytes of the messages that wait.")
	podCount        = gauge("gputrace_agent_pods", "Pods of this node whose names are known.")
	cpuBudget       = gauge("gputrace_agent_cpu_budget_ratio", "cpu_budget: process of one CPU, node of all; 0: no limit.")
	memoryLimit     = gauge("gputrace_agent_memory_limit_bytes", "memory_limit of the configuration.")
	datasetRows     = counter("gputrace_agent_dataset_rows_total", "Rows of the dataset, by outcome: written or, if too many waited, dropped.")
	datasetFailures = counter("gputrace_agent_dataset_failures_total", "Times that the dataset could not be written; it is tried again.")
	datasetUnseen   = counter("gputrace_agent_dataset_ended_unseen_total", "Processes whose last peak is missing, because many ended at once.")
	datasetRemoved  = counter("gputrace_agent_dataset_removed_files_total", "Files removed because of max_size or max_age.")
	datasetBytes    = gauge("gputrace_agent_dataset_bytes", "Size of this node's files of the dataset.")
	datasetFiles    = gauge("gputrace_agent_dataset_files", "Number of this node's files of the dataset.")
	ringSegments    = counter("gputrace_agent_recordings_begun_total", "Recordings that were begun, one for each segment of a process.")
	ringRemoved     = counter("gputrace_agent_recordings_removed_total", "Recordings removed because of target_size, max_size or max_age.")
	ringFailures    = counter("gputrace_agent_recordings_failures_total", "Recordings that could not be written or removed; tried again.")
	ringPaused      = counter("gputrace_agent_recordings_paused_total", "Pauses of ten minutes, when a live set alone is too large.")
	ringBytes       = gauge("gputrace_agent_recordings_bytes", "Size of the recordings.")
	ringNumber      = gauge("gputrace_agent_recordings", "Number of the recordings.")
	scrapeTimeout   = 5 * time.Second
	unknownVerdicts = strings.ToLower(verdict.Unknown)
)

func gauge(name, help string) metric   { return metric{name, help, prometheus.GaugeValue} }
func counter(name, help string) metric { return metric{name, help, prometheus.CounterValue} }

// collector makes the metrics of one scrape.
type collector struct {
	agent *Agent
	ctx   context.Context
	chose func(*target) bool // nil: all processes, and the agent itself
}

// Describe implements prometheus.Collector. Without descriptions, the labels may differ from process to process.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	a := c.agent
	ctx, cancel := context.WithTimeout(c.ctx, scrapeTimeout)
	defer cancel()
	running := 0.0
	r, err := a.current()
	var state *recorder.State
	if err == nil {
		if state, err = r.State(ctx); err == nil {
			running = 1
		}
	}
	if c.chose == nil {
		c.ownMetrics(&sink{to: to}, running)
	}
	if state == nil {
		return
	}
	for _, t := range a.all() {
		k := slices.IndexFunc(state.Processes, func(p recorder.ProcessState) bool { return p.Process == t.process })
		if k < 0 || c.chose != nil && !c.chose(t) {
			continue
		}
		s := &sink{to: to, labels: t.process.Labels(), began: t.began}
		s.totals(&state.Processes[k].Totals)
		s.add(lostEvents, float64(state.Processes[k].Lost))
		s.cost(state.Processes[k].Cost)
		s.growth(&state.Processes[k])
		last, found := t.last()
		s.summary(last, &state.Processes[k].Totals)
		s.found(t.process, found)
	}
}

// ownMetrics makes the metrics of the agent.
func (c *collector) ownMetrics(s *sink, running float64) {
	a := c.agent
	s.add(up, running)
	s.add(targetCount, float64(len(a.all())))
	for _, m := range []struct {
		metric
		value uint64
	}{
		{attachedCount, a.counts.attached.Load()}, {endedCount, a.counts.ended.Load()}, {refusedCount, a.counts.refused.Load()},
		{warningCount, a.counts.warnings.Load()}, {restartCount, a.counts.restarts.Load()}, {summaryCount, a.counts.summaries.Load()},
		{profileCount, a.counts.profiles.Load()}, {unjudgedCount, a.counts.unjudged.Load()}, {memoryLimit, uint64(a.config.MemoryLimit)},
	} {
		s.add(m.metric, float64(m.value))
	}
	s.add(cpuBudget, float64(a.config.CPUBudget.Process), "of", "process")
	s.add(cpuBudget, float64(a.config.CPUBudget.Node), "of", "node")
	s.add(summarySeconds, time.Duration(a.counts.viewNanos.Load()).Seconds())
	if a.ring != nil {
		s.recordings(a.ring)
	}
	if a.store != nil {
		n := &a.store.counts
		s.add(datasetRows, float64(n.written.Load()), "outcome", "written")
		s.add(datasetRows, float64(n.dropped.Load()), "outcome", "dropped")
		s.add(datasetFailures, float64(n.failures.Load()))
		s.add(datasetUnseen, float64(n.unseen.Load()))
		s.add(datasetRemoved, float64(n.removed.Load()))
		s.add(datasetBytes, float64(n.bytes.Load()))
		s.add(datasetFiles, float64(n.files.Load()))
	}
	for _, h := range a.hooks {
		n := h.Counts()
		s.outcomes(hookMessages, &n, "webhook", h.config.Name)
	}
	for _, p := range a.pushers {
		n, name := p.Counts(), p.config.Name
		s.outcomes(pushMessages, &n, "push", name)
		s.add(pushAgain, float64(n.Retries), "push", name)
		s.add(pushRejected, float64(n.Rejected), "push", name)
		s.add(pushSent, float64(n.SentBytes), "push", name)
		s.add(pushWaiting, float64(n.WaitingBytes), "push", name)
	}
	if n := a.labeler.names; n != nil {
		pods, _ := n.Synced()
		s.add(podCount, float64(pods))
	}
	sum := map[string]uint64{}
	for _, h := range a.hits() {
		sum["emitted"] += h.Emitted
		for _, n := range h.Quiet {
			sum["quiet"] += n
		}
		for why, n := range h.Dropped {
			sum["dropped: "+why] += n
		}
	}
	for _, outcome := range slices.Sorted(maps.Keys(sum)) {
		s.add(probeHits, float64(sum[outcome]), "outcome", outcome)
	}
}

// hits returns the counts of the probes; nil while they cannot be read.
func (a *Agent) hits() []figures.Hits {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	r, err := a.current()
	if err != nil {
		return nil
	}
	out, _ := r.Hits(ctx) // nil: the recorder has just ended
	return out
}

// sink sends metrics with the labels of a process.
type sink struct {
	to     chan<- prometheus.Metric
	labels map[string]string
	began  time.Time // when the process's counters began; zero: for the agent's own
}

// add sends a metric; more are further labels, name by name.
func (s *sink) add(m metric, value float64, more ...string) {
	labels := prometheus.Labels{}
	for name, v := range s.labels {
		labels[name] = v
	}
	for i := 0; i+1 < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	desc := prometheus.NewDesc(m.name, m.help, nil, labels)
	if m.kind == prometheus.CounterValue && !s.began.IsZero() {
		s.to <- prometheus.MustNewConstMetricWithCreatedTimestamp(desc, m.kind, value, s.began)
		return
	}
	s.to <- prometheus.MustNewConstMetric(desc, m.kind, value)
}

// outcomes sends what became of messages; more are further labels, name by name.
func (s *sink) outcomes(m metric, n *delivery.Counts, more ...string) {
	s.add(m, float64(n.Sent), append(more, "outcome", "sent")...)
	s.add(m, float64(n.Failed), append(more, "outcome", "failed")...)
	s.add(m, float64(n.Dropped), append(more, "outcome", "dropped")...)
}

// known sends a size unless it is not known.
func (s *sink) known(m metric, bytes uint64, more ...string) {
	if bytes != event.Unknown {
		s.add(m, float64(bytes), more...)
	}
}

// totals sends the figures of the live set.
func (s *sink) totals(t *heap.Totals) {
	for i := range t.Accounts {
		a, device := &t.Accounts[i], t.Accounts[i].Device.String()
		live := a.Allocated
		if live == event.Unknown {
			live = a.Live.Bytes
		}
		s.known(liveBytes, live, "device", device)
		s.known(peakBytes, max(a.Peak, live), "device", device)
		s.known(reservedBytes, a.Reserved, "device", device)
		s.known(beforeBytes, a.Before, "device", device)
		s.add(allocations, float64(a.Allocs), "device", device)
		s.add(freed, float64(a.Frees), "device", device)
		s.add(refusals, float64(a.OOMs), "device", device)
	}
	for i := range t.Drivers {
		d := &t.Drivers[i]
		s.add(driverBytes, float64(d.Live.Bytes), "device", d.Device.String(), "layer", d.Layer.String())
	}
}

// cost sends what tracing costs the process.
func (s *sink) cost(c *figures.Cost) {
	if c == nil {
		return
	}
	s.add(degraded, float64(c.Detail))
	s.add(leftOut, float64(c.LeftOut))
	s.add(tracingTime, c.Programs.Seconds(), "part", "programs")
	s.add(tracingTime, c.Trap().Seconds(), "part", "trap")
}

// growth sends the verdict's figures.
func (s *sink) growth(p *recorder.ProcessState) {
	if p.Leaks == nil {
		return
	}
	s.add(steps, float64(p.Leaks.Steps.Count))
	rate := 0.0
	full := math.Inf(1)
	for i := range p.Leaks.Findings {
		f := &p.Leaks.Findings[i]
		if f.Layer == event.LayerHost {
			continue
		}
		rate += answer.Rate(f, &p.Leaks.Steps)
		if !math.IsNaN(f.Seconds) {
			full = min(full, f.Seconds)
		}
	}
	s.add(growthBytes, answer.BytesPerStep(p.Leaks))
	s.add(growthRate, rate)
	if !math.IsInf(full, 1) {
		s.add(fullSeconds, full)
	}
}

// summary sends what is computed once an interval.
func (s *sink) summary(in *summary, t *heap.Totals) {
	if in == nil {
		s.add(verdicts, 1, "verdict", unknownVerdicts)
		return
	}
	s.add(verdicts, 1, "verdict", strings.ReplaceAll(strings.ToLower(in.Verdict), " ", "_"))
	for i := range in.Lines {
		s.add(lineBytes, float64(in.Lines[i].Bytes), "line", in.Lines[i].Name)
	}
	for phase, bytes := range in.phases {
		s.add(phaseBytes, float64(bytes), "phase", phase)
	}
	for i := range in.Driver {
		u := &in.Driver[i]
		device := event.Device{Type: event.DeviceCUDA, Index: int8(u.Device)}
		more := []string{"device", device.String(), "gpu_uuid", u.UUID}
		s.known(usedBytes, uint64(u.Used), more...)
		s.known(totalBytes, uint64(u.Total), more...)
		if explained := explained(t, device); uint64(u.Used) != event.Unknown && u.Device >= 0 {
			s.add(unexplained, float64(u.Used)-float64(explained), more...)
		}
	}
}

// explained returns the memory of a device that the events and the allocator's totals explain, bytes.
func explained(t *heap.Totals, d event.Device) (sum uint64) {
	for i := range t.Accounts {
		if a := &t.Accounts[i]; a.Device == d && a.Reserved != event.Unknown {
			sum += a.Reserved
		}
	}
	for i := range t.Drivers {
		if a := &t.Drivers[i]; a.Device == d && a.Layer == event.LayerDevice {
			sum += a.Live.Bytes - min(a.Live.Bytes, a.Segments.Bytes)
		}
	}
	return sum
}

// found sends what was found in the process.
func (s *sink) found(p *recorder.Process, f *recorder.Found) {
	framework := f.PyTorch
	if framework != "" {
		framework = "PyTorch " + framework
	}
	if framework == "" {
		framework = strings.Join(f.Frameworks, " ")
	}
	s.add(processInfo, 1, "program", lineName(p.Script()), "python", f.Python, "framework", lineName(framework))
	s.add(attachedTime, float64(s.began.UnixMilli())/1000)
}

// registry returns what makes the metrics of one scrape: of the chosen processes or, if chose is nil, of all and of the agent itself.
func (a *Agent) registry(ctx context.Context, chose func(*target) bool) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	if chose == nil {
		registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		build := prometheus.NewDesc("gputrace_build_info", "1, with the version.", nil, prometheus.Labels{"version": a.version})
		registry.MustRegister(constant{prometheus.MustNewConstMetric(build, prometheus.GaugeValue, 1)})
	}
	registry.MustRegister(&collector{agent: a, ctx: ctx, chose: chose})
	return registry
}

// serveMetrics answers a scrape.
func (a *Agent) serveMetrics(w http.ResponseWriter, r *http.Request) {
	var chose func(*target) bool
	if filtered(r) || !a.grantOf(r).all {
		chose = a.shows(r)
	}
	o := promhttp.HandlerOpts{EnableOpenMetrics: true, EnableOpenMetricsTextCreatedSamples: true, ErrorHandling: promhttp.ContinueOnError}
	promhttp.HandlerFor(a.registry(r.Context(), chose), o).ServeHTTP(w, r)
}

// constant is a collector of one metric.
type constant struct{ prometheus.Metric }

// Describe implements prometheus.Collector.
func (c constant) Describe(to chan<- *prometheus.Desc) { to <- c.Desc() }

// Collect implements prometheus.Collector.
func (c constant) Collect(to chan<- prometheus.Metric) { to <- c.Metric }

// recordings makes the metrics of a ring.
func (s *sink) recordings(r *ring.Ring) {
	bytes, number := r.Size()
	s.add(ringSegments, float64(r.Counts.Segments.Load()))
	s.add(ringRemoved, float64(r.Counts.Removed.Load()))
	s.add(ringFailures, float64(r.Counts.Failures.Load()))
	s.add(ringPaused, float64(r.Counts.Paused.Load()))
	s.add(ringBytes, float64(bytes))
	s.add(ringNumber, float64(number))
}
