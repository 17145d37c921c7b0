package proxy

import "strings"

// target is what a path of the API server's proxy subresource leads to.
type target struct {
	namespace string
	// resource is "services" or "pods".
	resource string
	// segment names the object in the path and in access rules: "name", "name:port" or "scheme:name:port".
	segment string
	name    string
	// port is a port's name or number; empty for the only one.
	port string
	// path is what is asked of the target, with a slash in front.
	path string
}

// parsePath reads /api/v1/namespaces/{namespace}/{services|pods}/[{scheme}:]{name}[:{port}]/proxy[/{path}]; false for any
// other path.
func parsePath(path string) (target, bool) {
	rest, found := strings.CutPrefix(path, "/api/v1/namespaces/")
	if !found {
		return target{}, false
	}
	parts := strings.SplitN(rest, "/", 5)
	if len(parts) < 4 || parts[0] == "" || parts[3] != "proxy" {
		return target{}, false
	}
	t := target{namespace: parts[0], resource: parts[1], segment: parts[2], path: "/"}
	if t.resource != "services" && t.resource != "pods" {
		return target{}, false
	}
	if len(parts) == 5 {
		t.path += parts[4]
	}
	switch names := strings.Split(t.segment, ":"); len(names) {
	case 1:
		t.name = names[0]
	case 2:
		t.name, t.port = names[0], names[1]
	case 3:
		if names[0] != "" && names[0] != "http" && names[0] != "https" {
			return target{}, false
		}
		t.name, t.port = names[1], names[2]
	default:
		return target{}, false
	}
	return t, t.name != ""
}
