// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gputrace/gputrace/agent/delivery"
	"github.com/gputrace/gputrace/internal/words"
)

// The events that webhooks receive.
const (
	failedRequest = "out_of_memory" // a request for memory failed
	startsToGrow  = "growing"       // the verdict on a process became GROWING
)

// The formats of webhooks.
const (
	plainFormat        = "json"
	slackFormat        = "slack"
	alertmanagerFormat = "alertmanager"
	pagerDutyFormat    = "pagerduty"
)

// message is what a webhook receives of an event.
type message struct {
	Event   string      `json:"event"`
	Text    string      `json:"text"` // the event in one sentence
	Failure *failure    `json:"failure,omitempty"`
	Target  *targetFile `json:"target,omitempty"`
}

// about returns the process of a message: its id, program, labels and time.
func (m *message) about() (pid int, program string, labels map[string]string, at time.Time) {
	if f := m.Failure; f != nil {
		return f.PID, f.Program, f.Labels, f.Failed
	}
	return m.Target.PID, m.Target.Program, m.Target.Labels, m.Target.Time
}

// name returns the process as people know it: "ml/train-0 (train.py, pid 7 on node1)".
func (m *message) name() string {
	pid, program, labels, _ := m.about()
	where := fmt.Sprintf("%s, pid %d", program, pid)
	if node := labels["node"]; node != "" {
		where += " on " + node
	}
	switch {
	case labels["pod"] != "":
		return strings.TrimPrefix(labels["namespace"]+"/"+labels["pod"], "/") + " (" + where + ")"
	case labels["job_id"] != "":
		return "job " + labels["job_id"] + " (" + where + ")"
	}
	return where
}

// title is how an event is called in a message for people.
func (m *message) title() string {
	if m.Event == failedRequest {
		return "OUT OF MEMORY"
	}
	return "GROWING"
}

// body returns a message in the format of a webhook. key is PagerDuty's.
func (m *message) body(format, key string) ([]byte, error) {
	pid, _, labels, at := m.about()
	switch format {
	case slackFormat: // https://docs.slack.dev/messaging/formatting-message-text: three characters are special
		escape := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
		return json.Marshal(map[string]string{"text": "*" + m.title() + "* " + escape.Replace(m.name()+": "+m.Text)})
	case alertmanagerFormat: // postableAlerts of Alertmanager's api/v2/openapi.yaml
		name := map[string]string{failedRequest: "GPUOutOfMemory", startsToGrow: "GPUMemoryGrowing"}[m.Event]
		all := maps.Clone(labels)
		if all == nil {
			all = map[string]string{}
		}
		all["alertname"], all["pid"] = name, fmt.Sprint(pid)
		return json.Marshal([]any{map[string]any{
			"labels": all, "startsAt": at.Format(time.RFC3339Nano),
			"annotations": map[string]string{"summary": m.title() + " " + m.name(), "description": m.Text},
		}})
	case pagerDutyFormat: // PagerDuty's Events API v2; summary has at most 1024 characters
		severity := map[string]string{failedRequest: "error", startsToGrow: "warning"}[m.Event]
		const longest = 1024
		return json.Marshal(map[string]any{
			"routing_key": key, "event_action": "trigger", "dedup_key": fmt.Sprintf("gputrace/%s/%s/%d", m.Event, labels["node"], pid),
			"payload": map[string]any{
				"summary": words.Cut(m.title()+" "+m.name()+": "+m.Text, longest), "source": labels["node"], "severity": severity,
				"timestamp": at.Format(time.RFC3339Nano), "custom_details": m,
			},
		})
	}
	return json.Marshal(m)
}

const (
	// maxMessages is how many messages of a webhook may wait.
	maxMessages = 64
	// maxMessageBytes is how many bytes they may have.
	maxMessageBytes = 16 << 20
	// hookPause follows the first of at most maxTries attempts; each later pause is twice as long as the one before.
	hookPause, maxHookPause = time.Second, 5 * time.Minute
	maxTries                = 5
)

// hook sends messages to one webhook, in their order.
type hook struct {
	*delivery.Sender
	config *WebhookConfig
	key    string // PagerDuty's routing key
	log    *slog.Logger
}

// hooks are the webhooks of an agent.
type hooks []*hook

// newHooks reads the secrets of the webhooks.
func newHooks(all []WebhookConfig, log *slog.Logger) (hooks, error) {
	var out hooks
	for i := range all {
		c := &all[i]
		h := &hook{config: c, log: log}
		to := delivery.Destination{URL: c.URL, URLFile: c.URLFile, TokenFile: c.TokenFile}
		var err error
		if c.Format == pagerDutyFormat { // its key is in the message
			to.TokenFile = ""
			if h.key, err = delivery.Secret(c.TokenFile); err != nil {
				return nil, fmt.Errorf("webhook %s: %w", c.Name, err)
			}
		}
		h.Sender, err = delivery.New(&delivery.Options{
			Kind: "webhook", Name: c.Name, Destination: to, Header: http.Header{"Content-Type": {"application/json"}},
			Retry: hookRetries, MaxTries: maxTries, Pause: hookPause, MaxPause: maxHookPause,
			MaxMessages: maxMessages, MaxBytes: maxMessageBytes, Log: log,
		})
		if err != nil {
			return nil, err
		}
		out = append(out, h)
	}
	return out, nil
}

// hookRetries reports whether a receiver that answers with a status may accept a message later.
func hookRetries(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status/100 == 5
}

// send hands a message to the webhooks that want it, and does not wait.
func (all hooks) send(m *message) {
	for _, h := range all {
		if !slices.Contains(h.config.On, m.Event) {
			continue
		}
		body, err := m.body(h.config.Format, h.key)
		if err != nil {
			h.log.Error("a message was not written", "webhook", h.config.Name, "error", err)
			continue
		}
		h.Add(body)
	}
}

// run sends the messages until ctx is done.
func (all hooks) run(ctx context.Context) {
	var each sync.WaitGroup
	for _, h := range all {
		each.Go(func() { h.Run(ctx) })
	}
	each.Wait()
}
