{{ config(materialized="table") }}
select customer, count(*) as orders from {{ ref("orders") }} group by customer
