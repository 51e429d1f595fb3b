;; Has a gigabyte of memory from the start.
(module
  (memory (export "memory") 16384)
  ;; Where arguments go: they are small.
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 8192)
  (data (i32.const 256) "{\"name\":\"huge-memory\",\"version\":\"0.1.0\",\"parent\":{\"apiVersion\":\"cases.example.com/v1\",\"kind\":\"Widget\"},\"children\":[{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\"}]}")
  ;; Pointer and length of the manifest.
  (data (i32.const 64) "\00\01\00\00\9b\00\00\00")
  (func (export "describe") (result i32) i32.const 64)
  (func (export "reconcile") (param i32 i32) (result i32) unreachable)
  (func (export "finalize") (param i32 i32) (result i32) unreachable)
)
