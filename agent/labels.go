// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/gputrace/gputrace/agent/kube"
	"github.com/gputrace/gputrace/agent/place"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/recorder/rank"
)

const (
	// maxValue is the maximum length of a label's value, and maxLabels the maximum number of labels of a process.
	maxValue  = 200
	maxLabels = 32
	// reserved begins the names of labels that only relabel rules see.
	reserved = model.ReservedLabelPrefix
)

// labeler makes the labels of processes.
type labeler struct {
	config *Config
	names  *kube.Names // nil: the API server is not asked
	node   string
}

// labels returns the labels of a process. keep is false when a rule drops it, and complete when no name is missing that the API
// server may still report.
func (l *labeler) labels(pid int, about *process.About, cgroups string, uid int) (out map[string]string, keep, complete bool) {
	at := place.Find(cgroups, about.Environ, l.config.JobVariables)
	all := map[string]string{
		"pid": strconv.Itoa(pid), "node": l.node, "container_id": at.Container, "job_id": at.Job, "unit": at.Unit,
		reserved + "meta_process_pid":             strconv.Itoa(pid),
		reserved + "meta_process_executable_name": about.Name,
		reserved + "meta_process_cmdline":         words.CommandLine(about.Cmdline, about.Name),
		reserved + "meta_process_cgroup":          at.Cgroup,
		reserved + "meta_process_uid":             strconv.Itoa(uid),
		reserved + "meta_gputrace_runtime":        at.Runtime,
		reserved + "meta_gputrace_scheduler":      at.Scheduler,
		reserved + "meta_gputrace_job_id":         at.Job,
		reserved + "meta_gputrace_job_step":       at.Step,
	}
	if r := rank.Of(about.Environ); r.Known() {
		all["rank"] = strconv.Itoa(r.Global - 1)
		all[reserved+"meta_gputrace_rank"] = all["rank"]
		all[reserved+"meta_gputrace_world_size"] = strconv.Itoa(r.World)
		if r.Local > 0 {
			all[reserved+"meta_gputrace_local_rank"] = strconv.Itoa(r.Local - 1)
		}
	}
	complete = l.addPod(all, at)
	for name, value := range l.config.Labels {
		all[name] = value
	}
	if out, keep = l.relabel(all); keep {
		out["pid"] = strconv.Itoa(pid) // it tells processes apart, whatever the rules say
	}
	return out, keep, complete
}

// namespace returns the namespace of the pod that a control group belongs to. Empty: it belongs to none, or it is not known yet.
func (l *labeler) namespace(cgroups string) string {
	at := place.Find(cgroups, nil, nil)
	if l.names == nil || at.Pod == "" {
		return ""
	}
	p := l.names.Pod(at.Pod)
	if p == nil {
		return ""
	}
	return p.Namespace
}

// addPod adds what is known of the process's pod. It reports whether nothing is missing.
func (l *labeler) addPod(all map[string]string, at *place.Place) bool {
	const meta = reserved + "meta_kubernetes_"
	if at.Pod == "" {
		return true
	}
	all["pod_uid"], all[meta+"pod_uid"], all[meta+"pod_container_id"] = at.Pod, at.Pod, at.Container
	if l.names == nil {
		return true
	}
	p := l.names.Pod(at.Pod)
	if p == nil {
		return false
	}
	all["namespace"], all["pod"] = p.Namespace, p.Name
	all[meta+"namespace"], all[meta+"pod_name"], all[meta+"pod_node_name"] = p.Namespace, p.Name, p.Node
	for name, value := range p.Labels {
		all[meta+"pod_label_"+strings.Map(labelRune, name)] = value
	}
	name := p.Containers[at.Container]
	if name != "" {
		all["container"], all[meta+"pod_container_name"] = name, name
		delete(all, "container_id") // the names say as much, and stay when the container restarts
		delete(all, "pod_uid")
	}
	return name != ""
}

func labelRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
		return r
	}
	return '_'
}

// relabel applies the rules and leaves out reserved and empty labels.
func (l *labeler) relabel(all map[string]string) (map[string]string, bool) {
	b := labels.NewBuilder(labels.FromMap(all))
	if !relabel.ProcessBuilder(b, l.config.RelabelConfigs...) {
		return nil, false
	}
	out := map[string]string{}
	b.Range(func(label labels.Label) {
		legal := model.LegacyValidation.IsValidLabelName(label.Name) && !ours[label.Name]
		if legal && label.Value != "" && !strings.HasPrefix(label.Name, reserved) && len(out) < maxLabels {
			out[label.Name] = words.Cut(words.Line(words.Valid(label.Value)), maxValue)
		}
	})
	return out, true
}

// ours are labels of single metrics, which a process cannot have.
var ours = map[string]bool{
	"device": true, "gpu_uuid": true, "layer": true, "line": true, "verdict": true, "phase": true, "le": true, "quantile": true,
	"program": true, "python": true, "framework": true,
}
