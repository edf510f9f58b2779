// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v3"

	"github.com/gputrace/gputrace/internal/size"
)

// Config is the agent's configuration. Each field has a default, so that an empty file is a configuration.
type Config struct {
	// Listen is the address of the HTTP server. Other addresses than loopback need WebConfigFile or AllowInsecure.
	Listen string `yaml:"listen"`
	// WebConfigFile is a file of Prometheus's exporter toolkit, for TLS and basic authentication. Empty: neither.
	WebConfigFile string `yaml:"web_config_file"`
	// AllowInsecure serves an address that others can reach without TLS or authentication.
	AllowInsecure bool `yaml:"allow_insecure"`
	// Access are the tokens with which requests see processes. Empty: every request sees all.
	Access []AccessConfig `yaml:"access"`
	// Advertise is the address that service discovery returns. Empty: the one at which it was asked.
	Advertise string `yaml:"advertise"`

	// Processes matches the program names or command lines of the processes to trace, among those that use a GPU. Empty: all.
	Processes string `yaml:"processes"`
	// RelabelConfigs are rules of Prometheus for the labels of a process. A process that they drop is not traced.
	RelabelConfigs []*relabel.Config `yaml:"relabel_configs"`
	// Labels are added to each process, before RelabelConfigs.
	Labels map[string]string `yaml:"labels"`
	// JobVariables are environment variables of a process that name its job, if its control group does not.
	JobVariables []string `yaml:"job_variables"`
	// Kubernetes asks the API server for the names of pods.
	Kubernetes KubernetesConfig `yaml:"kubernetes"`

	// Interval is how often lines and verdicts are computed. Bytes are read at each scrape.
	Interval model.Duration `yaml:"interval"`
	// TopLines is the number of lines of each process with a metric. MaxLines limits the different ones in its whole life.
	TopLines int `yaml:"top_lines"`
	MaxLines int `yaml:"max_lines"`
	// MaxTargets is the number of processes that are traced at a time.
	MaxTargets int `yaml:"max_targets"`
	// MaxStacks is the number of different stacks that are kept of a process.
	MaxStacks int `yaml:"max_stacks"`
	// MemoryLimit is the agent's own memory above which no further process is traced; above half as much again the
	// recorder starts anew.
	MemoryLimit Size `yaml:"memory_limit"`
	// CPUBudget limits the CPU time that gputrace's programs take from the processes. Beyond it, stacks are left out.
	CPUBudget CPUBudgetConfig `yaml:"cpu_budget"`
	// RingSize is the size of the ring between kernel and agent.
	RingSize Size `yaml:"ring_size"`
	// Holders reads from the process's memory what holds memory that grows.
	Holders bool `yaml:"holders"`
	// StepOn is the function whose calls begin steps. Empty: detected.
	StepOn string `yaml:"step_on"`
	// CacheDir stores unwind tables between runs. Empty: no cache.
	CacheDir string `yaml:"cache_dir"`
	// IdleRestart is how long nothing must be traced for the recorder to start anew, which frees the tables of libraries.
	IdleRestart model.Duration `yaml:"idle_restart"`
	// Dataset writes moments of the processes to disk.
	Dataset DatasetConfig `yaml:"dataset"`
	// Recordings writes every event of the processes to disk.
	Recordings RecordingsConfig `yaml:"recordings"`
	// Webhooks receive a message when a request for memory fails, or memory begins to grow.
	Webhooks []WebhookConfig `yaml:"webhooks"`
	// Push are servers to which metrics and profiles are sent.
	Push []PushConfig `yaml:"push"`
}

// CPUBudgetConfig is the part of the configuration about the cost of tracing. 0 means no limit.
type CPUBudgetConfig struct {
	// Process is a share of one CPU, for each process.
	Process Share `yaml:"process"`
	// Node is a share of all CPUs, for all processes together.
	Node Share `yaml:"node"`
}

// Share is a part of a whole that is written as "1%".
type Share float64

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Share) UnmarshalYAML(n *yaml.Node) error {
	v, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(n.Value, "%")), 64)
	if err != nil || !(v >= 0 && v <= 100) || v > 0 && !strings.HasSuffix(n.Value, "%") {
		return fmt.Errorf("line %d: %q is not a share from 0%% to 100%%, such as 1%%", n.Line, n.Value)
	}
	*s = Share(v / 100)
	return nil
}

// WebhookConfig is a receiver of messages.
type WebhookConfig struct {
	// Name identifies it in metrics and in the log.
	Name string `yaml:"name"`
	// URL is its address. URLFile is a file that has the address, where that is a secret.
	URL     string `yaml:"url"`
	URLFile string `yaml:"url_file"`
	// TokenFile has a bearer token or, for PagerDuty, the routing key. Empty: none.
	TokenFile string `yaml:"token_file"`
	// Format is json, slack, alertmanager or pagerduty. Empty: json.
	Format string `yaml:"format"`
	// On lists the events that it receives: out_of_memory, growing. Empty: both.
	On []string `yaml:"on"`
}

// DatasetConfig is the part of the configuration about the dataset.
type DatasetConfig struct {
	// Dir is the folder of the dataset, which the agent makes. Empty: none is written.
	Dir string `yaml:"dir"`
	// Interval is how often a moment of each process is kept.
	Interval model.Duration `yaml:"interval"`
	// Flush is how often files are written. An agent that is killed loses the rows since the last time.
	Flush model.Duration `yaml:"flush"`
	// MaxRows is the number of rows that may wait in memory. When half of them do, files are written at once.
	MaxRows int `yaml:"max_rows"`
	// MaxSize and MaxAge limit this node's files; the oldest are removed.
	MaxSize Size           `yaml:"max_size"`
	MaxAge  model.Duration `yaml:"max_age"`
}

// RecordingsConfig is the part of the configuration about recordings.
type RecordingsConfig struct {
	// Dir is the directory of the recordings, which the agent makes. Empty: none are written.
	Dir string `yaml:"dir"`
	// Segment and SegmentSize are the age and the size at which a recording ends and the next one begins.
	Segment     model.Duration `yaml:"segment"`
	SegmentSize Size           `yaml:"segment_size"`
	// TargetSize limits the recordings of each process, MaxSize and MaxAge the recordings of all; the oldest are removed.
	TargetSize Size           `yaml:"target_size"`
	MaxSize    Size           `yaml:"max_size"`
	MaxAge     model.Duration `yaml:"max_age"`
}

// KubernetesConfig is the part of the configuration about Kubernetes. Empty fields are as in a pod.
type KubernetesConfig struct {
	Names     bool   `yaml:"names"`
	APIServer string `yaml:"api_server"`
	TokenFile string `yaml:"token_file"`
	CAFile    string `yaml:"ca_file"`
	Node      string `yaml:"node"`
}

// Size is a number of bytes that is written as "512MiB".
type Size uint64

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	v, err := size.Parse(n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %w", n.Line, err)
	}
	*s = Size(v)
	return nil
}

// The most that a configuration may ask for, so that a scrape has a bounded size.
const (
	mostTargets = 1000
	mostTop     = 100
)

// ReadConfig reads a configuration file. Empty: the defaults.
func ReadConfig(path string) (*Config, error) {
	var text []byte
	if path != "" {
		var err error
		if text, err = os.ReadFile(path); err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
	}
	c, err := ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

// ParseConfig parses a configuration and completes it.
func ParseConfig(text []byte) (*Config, error) {
	c := &Config{
		Listen: "127.0.0.1:9409", Interval: model.Duration(15 * time.Second), TopLines: 10, MaxLines: 1000, MaxTargets: 100,
		MaxStacks: 65536, MemoryLimit: 512 << 20, RingSize: 8 << 20, Holders: true, IdleRestart: model.Duration(10 * time.Minute),
		CPUBudget: CPUBudgetConfig{Process: 0.01, Node: 0.02},
		Dataset: DatasetConfig{
			Interval: model.Duration(time.Minute), Flush: model.Duration(time.Hour), MaxRows: 50_000, MaxSize: 10 << 30,
			MaxAge: model.Duration(30 * 24 * time.Hour),
		},
		Recordings: RecordingsConfig{
			Segment: model.Duration(time.Hour), SegmentSize: 16 << 20, TargetSize: 1 << 30, MaxSize: 10 << 30,
			MaxAge: model.Duration(7 * 24 * time.Hour),
		},
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return c, c.check()
}

// check reports a value that cannot be used.
func (c *Config) check() error {
	for _, n := range []struct {
		name               string
		value, least, most int
	}{
		{"top_lines", c.TopLines, 0, mostTop}, {"max_lines", c.MaxLines, c.TopLines, 100_000}, {"max_targets", c.MaxTargets, 1, mostTargets},
		{"max_stacks", c.MaxStacks, 1, 1 << 20}, {"interval in seconds", int(time.Duration(c.Interval).Seconds()), 1, 3600},
		{"memory_limit in MiB", int(c.MemoryLimit >> 20), 64, 1 << 20},
		{"dataset.interval in seconds", int(time.Duration(c.Dataset.Interval).Seconds()), 1, 86400},
		{"dataset.flush in seconds", int(time.Duration(c.Dataset.Flush).Seconds()), 1, 86400},
		{"dataset.max_rows", c.Dataset.MaxRows, 1000, 1_000_000},
		{"dataset.max_age in seconds", int(time.Duration(c.Dataset.MaxAge).Seconds()), 60, 1 << 30},
	} {
		if n.value < n.least || n.value > n.most {
			return fmt.Errorf("%s: %d is not between %d and %d", n.name, n.value, n.least, n.most)
		}
	}
	if err := c.Dataset.check(); err != nil {
		return fmt.Errorf("dataset.%w", err)
	}
	if err := c.Recordings.check(); err != nil {
		return fmt.Errorf("recordings.%w", err)
	}
	if c.RingSize < 4096 || c.RingSize&(c.RingSize-1) != 0 || c.RingSize > 1<<30 {
		return errors.New("ring_size: must be a power of two from 4KiB to 1GiB")
	}
	if _, err := regexp.Compile(c.Processes); err != nil {
		return fmt.Errorf("processes: %w", err)
	}
	for i, r := range c.RelabelConfigs {
		if err := r.Validate(model.UTF8Validation); err != nil {
			return fmt.Errorf("relabel_configs, rule %d: %w", i+1, err)
		}
	}
	for name := range c.Labels {
		if !model.LegacyValidation.IsValidLabelName(name) {
			return fmt.Errorf("labels: %q is not a valid label name", name)
		}
	}
	for i := range c.Webhooks {
		if err := c.Webhooks[i].check(); err != nil {
			return fmt.Errorf("webhooks, number %d: %w", i+1, err)
		}
	}
	if err := c.checkAccess(); err != nil {
		return err
	}
	names := map[string]bool{}
	for i := range c.Push {
		p := &c.Push[i]
		if err := p.check(); err != nil {
			return fmt.Errorf("push, number %d: %w", i+1, err)
		}
		if names[p.Name] {
			return fmt.Errorf("push, number %d: the name %s is there twice", i+1, p.Name)
		}
		names[p.Name] = true
	}
	return c.checkAddress()
}

// check reports a value that cannot be used, except numbers, which Config.check compares with their limits.
func (c *DatasetConfig) check() error {
	if c.MaxSize < 1<<20 {
		return fmt.Errorf("max_size: %d bytes are too few: at least 1MiB, with its unit, as in 10GiB", c.MaxSize)
	}
	if c.Dir != "" && !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("dir: %s must be an absolute path", c.Dir)
	}
	return nil
}

// check completes the configuration of a webhook, and reports what cannot be used.
func (w *WebhookConfig) check() error {
	if w.Name == "" {
		return errors.New("name is missing: metrics and the log use it, because the address may be a secret")
	}
	if (w.URL == "") == (w.URLFile == "") {
		return errors.New("set either url or url_file")
	}
	if w.Format == "" {
		w.Format = plainFormat
	}
	if formats := []string{plainFormat, slackFormat, alertmanagerFormat, pagerDutyFormat}; !slices.Contains(formats, w.Format) {
		return fmt.Errorf("format: %q must be one of %s", w.Format, strings.Join(formats, ", "))
	}
	if w.Format == pagerDutyFormat && w.TokenFile == "" {
		return errors.New("token_file is missing: PagerDuty needs a routing key")
	}
	events := []string{failedRequest, startsToGrow}
	if len(w.On) == 0 {
		w.On = events
	}
	for _, e := range w.On {
		if !slices.Contains(events, e) {
			return fmt.Errorf("on: %q must be one of %s", e, strings.Join(events, ", "))
		}
	}
	return nil
}

// checkAddress refuses to show jobs to everyone who can reach the machine, unless that was asked for.
func (c *Config) checkAddress() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	ip := net.ParseIP(host)
	if host == "localhost" || ip != nil && ip.IsLoopback() || c.WebConfigFile != "" || c.AllowInsecure {
		return nil
	}
	return fmt.Errorf("listen: others can reach %s: set web_config_file for TLS or a password, or allow_insecure: true", c.Listen)
}

// pattern returns the expression of Processes; nil: all.
func (c *Config) pattern() *regexp.Regexp {
	if c.Processes == "" {
		return nil
	}
	return regexp.MustCompile(c.Processes)
}
