;; Takes ever more elements of a table, and traps when it gets no more.
(module
  (memory (export "memory") 1)
  (table $elements 1 funcref)
  ;; Where arguments go: they are small.
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 8192)
  (data (i32.const 256) "{\"name\":\"table-grows\",\"version\":\"0.1.0\",\"parent\":{\"apiVersion\":\"cases.example.com/v1\",\"kind\":\"Widget\"},\"children\":[{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\"}]}")
  ;; Pointer and length of the manifest.
  (data (i32.const 64) "\00\01\00\00\9b\00\00\00")
  (func (export "describe") (result i32) i32.const 64)
  (func (export "reconcile") (param i32 i32) (result i32)
    (loop $more
      (br_if $more (i32.ne (table.grow $elements (ref.null func) (i32.const 10000)) (i32.const -1))))
    unreachable)
  (func (export "finalize") (param i32 i32) (result i32) unreachable)
)
