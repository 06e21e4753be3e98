{{ config(materialized="incremental", incremental_strategy="insert_overwrite", partition_by="size") }}
select count(*) as customers, orders div 1000 as size from {{ ref("order_counts") }} group by orders div 1000
