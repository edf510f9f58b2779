// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gputrace/gputrace/agent/delivery"
)

// AccessConfig is a token and the namespaces whose processes it shows.
type AccessConfig struct {
	// TokenFile has the bearer token, of at least minToken bytes. It is read again every few seconds, so that it can be replaced.
	TokenFile string `yaml:"token_file"`
	// Namespaces are names of Kubernetes. allNamespaces stands for every process, in a pod or not, and for the agent's own metrics.
	Namespaces []string `yaml:"namespaces"`
}

const (
	allNamespaces = "*"
	minToken      = 16
	// tokensEvery is how long tokens are used before their files are read again.
	tokensEvery = 5 * time.Second
)

// checkAccess reports what cannot be used of Config.Access.
func (c *Config) checkAccess() error {
	for i, a := range c.Access {
		switch {
		case a.TokenFile == "":
			return fmt.Errorf("access, number %d: token_file is missing", i+1)
		case len(a.Namespaces) == 0 || slices.Contains(a.Namespaces, ""):
			return fmt.Errorf("access, number %d: namespaces: name each namespace, or %q for all processes", i+1, allNamespaces)
		case !slices.Contains(a.Namespaces, allNamespaces) && !c.Kubernetes.Names:
			return fmt.Errorf("access, number %d: namespaces are known with kubernetes: {names: true} only", i+1)
		}
	}
	return nil
}

// grant is what a request may see.
type grant struct {
	all        bool // every process, and the agent itself
	namespaces []string
}

// The grants without a list of namespaces.
var (
	everything = &grant{all: true}
	nothing    = &grant{}
)

// sees reports whether a request may see a process of a namespace. Empty: it is in none, or its namespace is not known.
func (g *grant) sees(namespace string) bool {
	return g.all || namespace != "" && slices.Contains(g.namespaces, namespace)
}

// access decides which processes a request may see, by its bearer token.
type access struct {
	config []AccessConfig
	log    *slog.Logger
	now    func() time.Time

	mu     sync.Mutex
	read   time.Time // when the tokens were read
	tokens []token
}

// token is a token that is valid. Tokens are compared by their digests, in a time that does not depend on them.
type token struct {
	digest [sha256.Size]byte
	grant  *grant
}

// newAccess reads the tokens; nil: every request may see everything.
func newAccess(config []AccessConfig, log *slog.Logger) (*access, error) {
	if len(config) == 0 {
		return nil, nil
	}
	x := &access{config: config, log: log, now: time.Now}
	var err error
	x.tokens, err = x.load()
	x.read = x.now()
	return x, err
}

// load reads the files of the tokens. It returns the tokens that can be used, and the reasons for the others.
func (x *access) load() ([]token, error) {
	var out []token
	var errs []error
	for i := range x.config {
		c := &x.config[i]
		text, err := delivery.Secret(c.TokenFile)
		if err == nil && len(text) < minToken {
			err = fmt.Errorf("%s: a token has at least %d characters", c.TokenFile, minToken)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("access: %w", err))
			continue
		}
		digest := sha256.Sum256([]byte(text))
		if slices.ContainsFunc(out, func(t token) bool { return t.digest == digest }) {
			errs = append(errs, fmt.Errorf("access: %s: the token is in another file too", c.TokenFile))
			continue
		}
		out = append(out, token{digest, &grant{slices.Contains(c.Namespaces, allNamespaces), c.Namespaces}})
	}
	return out, errors.Join(errs...)
}

// current returns the valid tokens. One whose file can no longer be read is not valid.
func (x *access) current() []token {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.now().Sub(x.read) < tokensEvery {
		return x.tokens
	}
	var err error
	if x.tokens, err = x.load(); err != nil {
		x.log.Warn("some tokens are not valid", "error", err)
	}
	x.read = x.now()
	return x.tokens
}

// grant returns what the token of a request shows; nil: it has no valid one.
func (x *access) grant(r *http.Request) *grant {
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return nil
	}
	scheme, text, _ := strings.Cut(headers[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	digest := sha256.Sum256([]byte(text))
	var found *grant
	for _, t := range x.current() {
		if subtle.ConstantTimeCompare(t.digest[:], digest[:]) == 1 {
			found = t.grant
		}
	}
	return found
}

// grantKey is the key of a request's grant in its context.
type grantKey struct{}

// openPaths need no token: they say nothing about a process, and orchestrators have none.
var openPaths = []string{"/-/healthy", "/-/ready"}

// authorize lets requests pass that have a valid token, with its grant.
func (a *Agent) authorize(next http.Handler) http.Handler {
	if a.access == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slices.Contains(openPaths, r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		// A cache on the way must not keep the answer to one token for another.
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("Vary", "Authorization")
		g := a.access.grant(r)
		if g == nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a valid bearer token is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), grantKey{}, g)))
	})
}

// grantOf returns what a request may see: without Config.Access everything, otherwise what authorize has found, and nothing where it was
// not asked.
func (a *Agent) grantOf(r *http.Request) *grant {
	if a.access == nil {
		return everything
	}
	if g, ok := r.Context().Value(grantKey{}).(*grant); ok {
		return g
	}
	return nothing
}

// checkWeb refuses a web configuration with passwords beside tokens: both are in the header Authorization, so that no request would have
// both.
func (c *Config) checkWeb() error {
	if len(c.Access) == 0 || c.WebConfigFile == "" {
		return nil
	}
	text, err := os.ReadFile(c.WebConfigFile)
	if err != nil {
		return fmt.Errorf("web_config_file: %w", err)
	}
	var web struct {
		Users map[string]string `yaml:"basic_auth_users"`
	}
	if err := yaml.Unmarshal(text, &web); err != nil {
		return fmt.Errorf("web_config_file: %w", err)
	}
	if len(web.Users) > 0 {
		return errors.New("web_config_file: basic_auth_users and access exclude each other: a request has a password or a token")
	}
	return nil
}
