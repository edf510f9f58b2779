// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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
	// hookTimeout bounds one attempt. Attempts are repeated after hook.pause, then after twice as long each, at most maxTries in all.
	hookTimeout = 10 * time.Second
	maxTries    = 5
)

// hook sends messages to one webhook, in their order.
type hook struct {
	config *WebhookConfig
	url    string
	token  string
	queue  chan *message
	log    *slog.Logger
	pause  time.Duration // after the first attempt

	sent, failed, dropped atomic.Uint64
}

// hooks are the webhooks of an agent.
type hooks []*hook

// newHooks reads the secrets of the webhooks.
func newHooks(all []WebhookConfig, log *slog.Logger) (hooks, error) {
	var out hooks
	for i := range all {
		c := &all[i]
		h := &hook{config: c, url: c.URL, queue: make(chan *message, maxMessages), log: log, pause: time.Second}
		for _, secret := range []struct {
			file string
			to   *string
		}{{c.URLFile, &h.url}, {c.TokenFile, &h.token}} {
			if secret.file == "" {
				continue
			}
			text, err := os.ReadFile(secret.file)
			if err != nil {
				return nil, fmt.Errorf("webhook %s: %w", c.Name, err)
			}
			*secret.to = strings.TrimSpace(string(text))
		}
		if err := checkURL(h.url); err != nil {
			return nil, fmt.Errorf("webhook %s: %w", c.Name, err)
		}
		out = append(out, h)
	}
	return out, nil
}

// checkURL refuses what is no address of a webhook. The error does not have the address, which may be a secret.
func checkURL(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return errors.New("the address is not an http or https URL")
	}
	return nil
}

// send hands a message to the webhooks that want it, and does not wait.
func (all hooks) send(m *message) {
	for _, h := range all {
		if !slices.Contains(h.config.On, m.Event) {
			continue
		}
		select {
		case h.queue <- m:
		default:
			h.dropped.Add(1)
		}
	}
}

// run sends the messages until ctx is done.
func (all hooks) run(ctx context.Context) {
	var each sync.WaitGroup
	for _, h := range all {
		each.Go(func() {
			for {
				select {
				case m := <-h.queue:
					h.deliver(ctx, m)
				case <-ctx.Done():
					return
				}
			}
		})
	}
	each.Wait()
}

// deliver sends a message, and tries again if the receiver may accept it later.
func (h *hook) deliver(ctx context.Context, m *message) {
	pause := h.pause
	for try := 1; ; try++ {
		again, err := h.post(ctx, m)
		if err == nil {
			h.sent.Add(1)
			return
		}
		if !again || try == maxTries {
			h.failed.Add(1)
			h.log.Warn("a message was not delivered", "webhook", h.config.Name, "error", err, "attempts", try)
			return
		}
		select {
		case <-ctx.Done():
			h.failed.Add(1)
			return
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// post makes one attempt, and reports whether another one makes sense. Redirects are not followed: they would lead where the
// configuration does not.
func (h *hook) post(ctx context.Context, m *message) (again bool, err error) {
	body, err := m.body(h.config.Format, h.token)
	if err != nil {
		return false, fmt.Errorf("write the message: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return false, withoutURL(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if h.token != "" && h.config.Format != pagerDutyFormat {
		r.Header.Set("Authorization", "Bearer "+h.token)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(r)
	if err != nil {
		return true, withoutURL(err)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16)) // so that the connection can be used again
	if response.StatusCode/100 == 2 {
		return false, nil
	}
	switch code := response.StatusCode; {
	case code == http.StatusTooManyRequests, code == http.StatusRequestTimeout, code/100 == 5:
		again = true
	}
	return again, fmt.Errorf("the receiver answered %s", response.Status)
}

// withoutURL removes the address from an error, because it may be a secret.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}
