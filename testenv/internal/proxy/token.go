package proxy

import (
	"context"
	"crypto/subtle"
	"net/http"
	"net/url"
)

// tokenHeader is where Ray looks for a token; the API server keeps Authorization to itself.
const tokenHeader = "x-ray-authorization"

type podSpec struct {
	Spec struct {
		Containers []struct {
			Env []variable `json:"env"`
		} `json:"containers"`
	} `json:"spec"`
}

type variable struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	ValueFrom *struct {
		SecretKeyRef *struct {
			Name string `json:"name"`
			Key  string `json:"key"`
		} `json:"secretKeyRef"`
	} `json:"valueFrom"`
}

type secretObject struct {
	Data map[string][]byte `json:"data"`
}

// requireToken returns nil if the request has the token that the environment of this head pod asks for, or if it asks for none.
func (h *heads) requireToken(ctx context.Context, namespace, pod string, header http.Header) *failure {
	base := "/api/v1/namespaces/" + url.PathEscape(namespace)
	var head podSpec
	if err := h.client.Do(ctx, http.MethodGet, base+"/pods/"+url.PathEscape(pod)+"?resourceVersion=0", nil, &head); err != nil {
		return failureOf(err)
	}
	asked, token := false, variable{}
	for _, v := range head.Spec.Containers[0].Env {
		asked = asked || v.Name == "RAY_AUTH_MODE" && v.Value == "token"
		if v.Name == "RAY_AUTH_TOKEN" {
			token = v
		}
	}
	if !asked {
		return nil
	}
	wanted := token.Value
	if from := token.ValueFrom; from != nil && from.SecretKeyRef != nil {
		var secret secretObject
		if err := h.client.Do(ctx, http.MethodGet, base+"/secrets/"+url.PathEscape(from.SecretKeyRef.Name), nil, &secret); err != nil {
			return failureOf(err)
		}
		wanted = string(secret.Data[from.SecretKeyRef.Key])
	}
	if wanted == "" || subtle.ConstantTimeCompare([]byte(header.Get(tokenHeader)), []byte("Bearer "+wanted)) != 1 {
		return &failure{http.StatusUnauthorized, "Unauthorized", "Unauthorized: missing or wrong authentication token"}
	}
	return nil
}
