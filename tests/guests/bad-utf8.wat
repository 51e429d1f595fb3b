;; Answers with a child whose text is no UTF-8.
(module
  (memory (export "memory") 1)
  ;; Where arguments go: they are small.
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const 8192)
  (data (i32.const 256) "{\"name\":\"bad-utf8\",\"version\":\"0.1.0\",\"parent\":{\"apiVersion\":\"cases.example.com/v1\",\"kind\":\"Widget\"},\"children\":[{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\"}]}")
  ;; Pointer and length of the manifest.
  (data (i32.const 64) "\00\01\00\00\98\00\00\00")
  (func (export "describe") (result i32) i32.const 64)
  ;; ok(plan { children: [text of two bytes], … nothing else })
  (data (i32.const 1024) "\00\00\00\00\00\08\00\00\01\00\00\00")
  (data (i32.const 2048) "\00\0c\00\00\02\00\00\00")
  (data (i32.const 3072) "\c3\28")
  (func (export "reconcile") (param i32 i32) (result i32) i32.const 1024)
  (func (export "finalize") (param i32 i32) (result i32) unreachable)
)
