// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// Destination is a server that receives messages, and how to authenticate to it.
type Destination struct {
	// URL is its address. URLFile is a file that has the address, where that is a secret.
	URL     string `yaml:"url"`
	URLFile string `yaml:"url_file"`
	// TokenFile has a bearer token. Empty: none. Files of secrets are read again for each attempt, so that they can be replaced.
	TokenFile string `yaml:"token_file"`
	// Username and PasswordFile are for basic authentication. Empty: none.
	Username     string `yaml:"username"`
	PasswordFile string `yaml:"password_file"`
	// Headers are sent with each message, such as X-Scope-OrgID. Their values are not logged.
	Headers map[string]string `yaml:"headers"`
	// CAFile has the certificates, in PEM, of the authorities that sign the server's. Empty: the system's.
	CAFile string `yaml:"ca_file"`
}

// Check reports what cannot be used, without reading files.
func (d *Destination) Check() error {
	switch {
	case (d.URL == "") == (d.URLFile == ""):
		return errors.New("set either url or url_file")
	case (d.Username == "") != (d.PasswordFile == ""):
		return errors.New("set username and password_file together")
	case d.Username != "" && d.TokenFile != "":
		return errors.New("set either token_file or username, not both")
	}
	for name, value := range d.Headers {
		if name == "" || strings.ContainsAny(name, " :\r\n") || strings.ContainsAny(value, "\r\n") {
			return fmt.Errorf("headers: %q cannot be a header", name)
		}
	}
	return nil
}

// Secret returns the text of a file without the space around it.
func Secret(file string) (string, error) {
	text, err := os.ReadFile(file)
	return strings.TrimSpace(string(text)), err
}

// server is a destination whose files were read.
type server struct {
	address string
	client  *http.Client
}

// open reads the files of a destination. Errors do not have its address.
func (d *Destination) open(path string) (*server, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	s := &server{address: d.URL}
	if d.URLFile != "" {
		var err error
		if s.address, err = Secret(d.URLFile); err != nil {
			return nil, err
		}
	}
	for _, file := range []string{d.TokenFile, d.PasswordFile} {
		if file == "" {
			continue
		}
		if _, err := Secret(file); err != nil {
			return nil, err
		}
	}
	u, err := url.Parse(s.address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the address is not an http or https URL")
	}
	if path != "" {
		u = u.JoinPath(path)
	}
	s.address = u.String()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxAnswer
	if d.CAFile != "" {
		pem, err := os.ReadFile(d.CAFile)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, errors.New("ca_file: there is no certificate in it")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	// Redirects are not followed: they would lead where the configuration does not.
	s.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s, nil
}

// authorize adds the credentials to a request.
func (d *Destination) authorize(r *http.Request) error {
	for name, value := range d.Headers {
		r.Header.Set(name, value)
	}
	if d.TokenFile != "" {
		token, err := Secret(d.TokenFile)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if d.Username != "" {
		password, err := Secret(d.PasswordFile)
		if err != nil {
			return err
		}
		r.SetBasicAuth(d.Username, password)
	}
	return nil
}

// reason describes why there was no answer. The errors of net/http have addresses and names of hosts, so that only what is known to have
// none is kept of them.
func reason(err error) error {
	var (
		dns       *net.DNSError
		number    syscall.Errno
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		header    tls.RecordHeaderError
	)
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.As(err, &dns):
		return errors.New("the name of the host was not found")
	case errors.Is(err, context.DeadlineExceeded), os.IsTimeout(err):
		return errors.New("the receiver did not answer in time")
	case errors.As(err, &authority):
		return errors.New("the certificate of the receiver is signed by an unknown authority")
	case errors.As(err, &host):
		return errors.New("the certificate of the receiver is for another host")
	case errors.As(err, &invalid):
		return errors.New("the certificate of the receiver is not valid")
	case errors.As(err, &header), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the receiver does not speak TLS")
	case errors.As(err, &number):
		return errors.New(number.Error())
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the receiver closed the connection before it answered")
	}
	return errors.New("the request failed")
}
