module github.com/slotmesh/slotmesh

go 1.26.0

require (
	github.com/anishathalye/porcupine v1.3.1
	github.com/hashicorp/go-sockaddr v1.0.7
	github.com/stretchr/testify v1.12.1
	github.com/tidwall/btree v1.8.2
	github.com/vmihailenco/msgpack/v5 v5.4.1
	github.com/yuin/gopher-lua v1.1.2
	go.uber.org/goleak v1.3.0
)

require (
	github.com/vmihailenco/tagparser/v2 v2.0.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
