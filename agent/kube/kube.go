// SPDX-License-Identifier: Apache-2.0

// Package kube keeps the names of the pods of one node, as the Kubernetes API server has them. It speaks plain HTTP: one list
// and then a watch, of this node's pods only. While the server cannot be reached, the last names stay, and new pods have none.
package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

// Options says which server to ask. The zero value asks the one of the pod in which this program runs.
type Options struct {
	// Server is the address of the API server, such as "https://10.0.0.1:443". Empty: as Kubernetes sets it in a pod.
	Server string
	// TokenFile and CAFile are read again for each request, because Kubernetes renews them. Empty: as in a pod.
	TokenFile, CAFile string
	// Node is the name of this node. Empty: the environment variable NODE_NAME.
	Node string
	// Warn receives each error after which names may be missing for a while. It must not block. nil: nobody does.
	Warn func(error)
}

const (
	account = "/var/run/secrets/kubernetes.io/serviceaccount/"
	// listLimit is the maximum size of a list of pods, and eventLimit of one change, bytes.
	listLimit  = 64 << 20
	eventLimit = 4 << 20
	// watchFor is how long a watch lasts before it begins again.
	watchFor = 5 * time.Minute
	// maxLabels is the maximum number of labels that are kept of a pod.
	maxLabels = 64
)

// Pod has the names of a pod.
type Pod struct {
	Namespace, Name, Node string
	Labels                map[string]string
	Containers            map[string]string // names of its containers, by identifier
}

// Names are the names of the pods of a node. They may be asked for from any goroutine.
type Names struct {
	options Options
	mu      sync.Mutex
	pods    map[string]*Pod // by UID
	synced  bool
}

// New returns names that are empty until Run has asked for them. The error says that this is no pod and no server is named.
func New(o *Options) (*Names, error) {
	n := &Names{options: *o, pods: map[string]*Pod{}}
	if n.options.Server == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" || port == "" {
			return nil, errors.New("kubernetes: no API server: this is no pod, and api_server is not set")
		}
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		n.options.Server = "https://" + host + ":" + port
	}
	if n.options.TokenFile == "" {
		n.options.TokenFile = account + "token"
	}
	if n.options.CAFile == "" {
		n.options.CAFile = account + "ca.crt"
	}
	if n.options.Node == "" {
		if n.options.Node = os.Getenv("NODE_NAME"); n.options.Node == "" {
			return nil, errors.New("kubernetes: the name of this node is not known: set node or the variable NODE_NAME")
		}
	}
	return n, nil
}

// Node returns the name of this node.
func (n *Names) Node() string { return n.options.Node }

// Pod returns the names of the pod with a UID; nil: not known.
func (n *Names) Pod(uid string) *Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods[uid]
}

// Synced reports whether the server has answered at least once, and how many pods are known.
func (n *Names) Synced() (pods int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.pods), n.synced
}

// Run keeps the names up to date until ctx is done.
func (n *Names) Run(ctx context.Context) {
	const shortest, longest = time.Second, time.Minute
	pause := shortest
	for ctx.Err() == nil {
		began := time.Now()
		err := n.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && n.options.Warn != nil {
			n.options.Warn(err)
		}
		if pause = min(2*pause, longest); time.Since(began) > longest {
			pause = shortest
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}

// follow lists the pods and watches them until the watch cannot be continued.
func (n *Names) follow(ctx context.Context) error {
	version, err := n.list(ctx)
	for err == nil && ctx.Err() == nil {
		version, err = n.watch(ctx, version)
	}
	return err
}

// object is what is read of a pod, and of the list and status objects around it.
type object struct {
	Metadata struct {
		UID, Name, Namespace, ResourceVersion string
		Labels, Annotations                   map[string]string
	}
	Spec   struct{ NodeName string }
	Status struct {
		ContainerStatuses, InitContainerStatuses, EphemeralContainerStatuses []struct{ Name, ContainerID string }
	}
	Code    int
	Message string
}

// list replaces all names.
func (n *Names) list(ctx context.Context) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	body, err := n.get(ctx, url.Values{})
	if err != nil {
		return "", err
	}
	defer body.Close()
	var all struct {
		Metadata struct{ ResourceVersion string }
		Items    []object
	}
	if err := json.NewDecoder(io.LimitReader(body, listLimit)).Decode(&all); err != nil {
		return "", fmt.Errorf("kubernetes: list the pods: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods, n.synced = map[string]*Pod{}, true
	for i := range all.Items {
		n.set(&all.Items[i])
	}
	return all.Metadata.ResourceVersion, nil
}

// set stores a pod under its UID and, for a pod of the kubelet's own, under the hash that its control group is named after.
func (n *Names) set(o *object) {
	m := &o.Metadata
	p := &Pod{Namespace: m.Namespace, Name: m.Name, Node: o.Spec.NodeName, Labels: map[string]string{}, Containers: map[string]string{}}
	for name, value := range m.Labels {
		if len(p.Labels) < maxLabels {
			p.Labels[name] = value
		}
	}
	s := &o.Status
	for _, c := range append(append(s.ContainerStatuses, s.InitContainerStatuses...), s.EphemeralContainerStatuses...) {
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok {
			p.Containers[id] = c.Name
		}
	}
	for _, key := range keys(o) {
		n.pods[key] = p
	}
}

// keys are the names under which the control groups of a pod may be found.
func keys(o *object) []string {
	out := []string{o.Metadata.UID}
	if hash := o.Metadata.Annotations["kubernetes.io/config.mirror"]; hash != "" {
		out = append(out, hash)
	}
	return out
}

// watch applies changes until the server ends the watch, and returns the version to continue with.
func (n *Names) watch(ctx context.Context, version string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, watchFor+time.Minute)
	defer cancel()
	body, err := n.get(ctx, url.Values{
		"watch": {"1"}, "resourceVersion": {version}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {fmt.Sprint(int(watchFor.Seconds()))},
	})
	if err != nil {
		return version, err
	}
	defer body.Close()
	limited := &io.LimitedReader{R: body}
	d := json.NewDecoder(limited)
	for {
		limited.N = eventLimit
		var change struct {
			Type   string
			Object object
		}
		switch err := d.Decode(&change); {
		case errors.Is(err, io.EOF) && limited.N > 0:
			return version, nil
		case err != nil:
			return version, fmt.Errorf("kubernetes: watch the pods: %w", err)
		case change.Type == "ERROR":
			return version, fmt.Errorf("kubernetes: watch the pods: %d %s", change.Object.Code, change.Object.Message)
		}
		n.apply(change.Type, &change.Object)
		version = change.Object.Metadata.ResourceVersion
	}
}

func (n *Names) apply(change string, o *object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch change {
	case "ADDED", "MODIFIED":
		n.set(o)
	case "DELETED":
		for _, key := range keys(o) {
			delete(n.pods, key)
		}
	}
}

// get asks for the pods of this node.
func (n *Names) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	query.Set("fieldSelector", "spec.nodeName="+n.options.Node)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, n.options.Server+"/api/v1/pods?"+query.Encode(), nil)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	client, err := n.client()
	if err != nil {
		return nil, err
	}
	if token, err := os.ReadFile(n.options.TokenFile); err == nil {
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: ask for the pods: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, fmt.Errorf("kubernetes: ask for the pods: %s", response.Status)
	}
	return response.Body, nil
}

// client returns a client that trusts the server's authority as it is now.
func (n *Names) client() (*http.Client, error) {
	t := &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}
	if strings.HasPrefix(n.options.Server, "https:") {
		authority, err := os.ReadFile(n.options.CAFile)
		if err != nil {
			return nil, fmt.Errorf("kubernetes: the server's authority: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(authority) {
			return nil, fmt.Errorf("kubernetes: no certificate in %s", n.options.CAFile)
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: t}, nil
}
