// Package apiclient speaks to the API server in plain JSON: the environment needs a handful of calls, on objects that it
// does not have types for.
package apiclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Client sends requests to one API server with one bearer token.
type Client struct {
	// Server is the API server's URL, without a slash at the end.
	Server string
	// Transport trusts the API server's certificate.
	Transport http.RoundTripper

	authorization string
}

// StatusError is an answer of the API server that is not a success.
type StatusError struct {
	Method, Path string
	Code         int
	Message      string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s %s: %d: %s", e.Method, e.Path, e.Code, e.Message)
}

// statusMessage is the message of an answer that is a Status object, and else the whole answer.
func statusMessage(answer []byte) string {
	var status struct {
		Message string `json:"message"`
	}
	if err := json.Unmarshal(answer, &status); err != nil || status.Message == "" {
		return string(answer)
	}
	return status.Message
}

// New makes a client that trusts the certificates of ca (PEM).
func New(server, token string, ca []byte) (*Client, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("the certificate authority of %s holds no certificate", server)
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		ForceAttemptHTTP2: true,
		// A proxy that uses it must not ask for what its caller did not ask for.
		DisableCompression:  true,
		MaxIdleConnsPerHost: 100,
		IdleConnTimeout:     90 * time.Second,
	}
	return &Client{Server: server, Transport: transport, authorization: "Bearer " + token}, nil
}

// As is the same client with another Authorization header.
func (c *Client) As(authorization string) *Client {
	return &Client{Server: c.Server, Transport: c.Transport, authorization: authorization}
}

// Do sends one request with body as JSON (nil for none) and decodes the reply into reply (nil to drop it). Answers
// outside 2xx are a *StatusError.
func (c *Client) Do(ctx context.Context, method, path string, body, reply any) error {
	var content io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode the body of %s %s: %w", method, path, err)
		}
		content = bytes.NewReader(encoded)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.Server+path, content)
	if err != nil {
		return fmt.Errorf("%s %s: %w", method, path, err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")
	if c.authorization != "" {
		request.Header.Set("Authorization", c.authorization)
	}
	response, err := (&http.Client{Transport: c.Transport}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("read the answer to %s %s: %w", method, path, err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return &StatusError{Method: method, Path: path, Code: response.StatusCode, Message: statusMessage(answer)}
	}
	if raw, wanted := reply.(*string); wanted {
		*raw = string(answer)
		return nil
	}
	if reply == nil {
		return nil
	}
	if err := json.Unmarshal(answer, reply); err != nil {
		return fmt.Errorf("decode the answer to %s %s: %w", method, path, err)
	}
	return nil
}
