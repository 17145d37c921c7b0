// Package container runs a container as a process: in mount, PID, UTS and IPC namespaces of its own and in the network
// namespace of its pod, on a writable layer over the machine's own files.
package container

// Mount is a file or directory of the machine that a container sees elsewhere.
type Mount struct {
	Source, Target string
	ReadOnly       bool
}

// Spec says what a container runs, and on what.
type Spec struct {
	// Dir is where the files that the container writes are kept.
	Dir string
	// Hidden is a directory that the container must not see: it holds the volumes of the others.
	Hidden string
	// Hostname is the pod's.
	Hostname string
	Mounts   []Mount
	Command  []string
	Env      []string
	// WorkingDir is made if it isn't there.
	WorkingDir string
	User       User
	// NoNewPrivileges keeps programs from getting more by set-user-ID bits.
	NoNewPrivileges bool
	// ReadOnlyRoot leaves only volumes, /tmp and the like to write to.
	ReadOnlyRoot bool
}

// User is whom the processes of a container belong to.
type User struct {
	ID, Group int
	// Groups are the supplemental ones.
	Groups []int
}
